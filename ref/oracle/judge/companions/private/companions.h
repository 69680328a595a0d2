/* The companions of a tap in a file: tensors "<tap>.<name>". SPEC 7.13. */
#ifndef M3_ORACLE_JUDGE_PRIVATE_COMPANIONS_H
#define M3_ORACLE_JUDGE_PRIVATE_COMPANIONS_H

enum m3_companion_field {
    M3_COMPANION_BOUND,
    M3_COMPANION_WALK,
    M3_COMPANION_GAIN,
    M3_COMPANION_INTERMEDIATES,
    M3_COMPANION_INTERMEDIATES_WALK,
    M3_COMPANION_MARGIN,
    M3_COMPANION_WEIGHT,
    M3_COMPANION_BIAS,     /* of the operator, not of the tap's elements */
    M3_COMPANION_FIELDS,
};
extern const char *const m3_companion_names[M3_COMPANION_FIELDS];

#endif
