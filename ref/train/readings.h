/* Readings of the losses in which public sources differ; the first of each is the default. TRAINING 19.16 and 19.17
 * give the sources. */
#ifndef M3_TRAIN_READINGS_H
#define M3_TRAIN_READINGS_H

enum m3_kl_phase { M3_KL_SPARSE, M3_KL_WARMUP };
enum m3_kl_teacher { M3_KL_PROB, M3_KL_LOGIT, M3_KL_ALL };
enum m3_kl_teacher_norm { M3_KL_SUPPORT, M3_KL_CUT, M3_KL_CUTNORM };
enum m3_kl_over { M3_KL_TOKENS, M3_KL_BLOCKS };
enum m3_kl_direction { M3_KL_TEACHER_STUDENT, M3_KL_STUDENT_TEACHER };
enum m3_kl_scale { M3_KL_SCALE_RSQRT, M3_KL_SCALE_1 };
enum m3_kl_count { M3_KL_ROWS_GROUPS, M3_KL_ROWS };
enum m3_kl_rows { M3_KL_VALID, M3_KL_EVERY };
enum m3_aux { M3_AUX_SOFTMAX, M3_AUX_SIGMOID };

struct m3_readings {
    enum m3_kl_phase kl_phase;
    enum m3_kl_teacher kl_teacher; /* mean of probabilities; softmax of the mean logit; one for all heads */
    enum m3_kl_teacher_norm kl_teacher_norm; /* softmax over the chosen keys; over all, then cut; and normalised */
    enum m3_kl_over kl_over; /* tokens; or masses of blocks against softmax of their largest logits */
    enum m3_kl_direction kl_direction;
    enum m3_kl_scale kl_scale; /* of the student's logits */
    double kl_tau; /* its temperature; 0 stands for 1 */
    enum m3_kl_count kl_count;
    enum m3_kl_rows kl_rows; /* which rows are counted in the divisor; padding never adds to the sum */
    double kl_log_eps; /* is added inside both logarithms */
    enum m3_aux aux;
};

#endif
