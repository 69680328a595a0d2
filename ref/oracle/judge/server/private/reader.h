/* Reading an answer: what the forms share. */
#ifndef M3_ORACLE_SERVER_PRIVATE_READER_H
#define M3_ORACLE_SERVER_PRIVATE_READER_H

#include "io/json.h"
#include "oracle/judge/server/answer.h"

struct m3_reader {
    struct m3_answer *answer;
    int64_t V;
    int64_t room_places, room_entries;
    struct m3_error *error;
};

/* The value of a token in JSON: a log-probability, or a probability. */
enum m3_reader_scale { M3_LOGARITHMS, M3_PROBABILITIES };

/* Begins a place; chosen may be -1. */
int m3_reader_begin(struct m3_reader *r, int generated, int64_t place, int32_t chosen);
/* Adds a token to it; `where` names it in messages. */
int m3_reader_add(struct m3_reader *r, int32_t id, const json_t *value, enum m3_reader_scale scale, const char *where);
/* Ends it: sorts its entries; each id may be there once. The chosen token's own value, if not NULL, joins the entries,
 * or must agree with its entry. */
int m3_reader_end(struct m3_reader *r, const json_t *chosen_value, enum m3_reader_scale scale, const char *where);

/* Reads a list of ids into *ids, which is freed by whoever frees the answer. */
int m3_reader_ids(struct m3_reader *r, int32_t **ids, int64_t *count, const json_t *list, const char *where);
/* Reads an id: a whole number below V. */
int m3_reader_id(struct m3_reader *r, int32_t *id, const json_t *value, const char *where);
/* "token_id:17" as an id; -1: another text. */
int64_t m3_reader_id_of_text(const char *text);
/* The id of a token in a list, from "id" or "token"; -1: it has a text only. */
int m3_reader_id_of_item(struct m3_reader *r, int32_t *id, const json_t *item, const char *where);
/* M3_BAD_INPUT. `expected` may be NULL. */
int m3_reader_refuse(struct m3_reader *r, const char *where, const char *got, const char *expected);

/* The forms (forms.c, llama_cpp.c, openai.c). */
int m3_read_prompt_logprobs(struct m3_reader *r, const json_t *list, const char *where);
int m3_read_openai(struct m3_reader *r, const json_t *root, const json_t *choice);
int m3_read_llama_cpp(struct m3_reader *r, const json_t *root);
int m3_read_sglang(struct m3_reader *r, const json_t *root);
int m3_read_plain(struct m3_reader *r, const json_t *root);
/* A token with its list of the most likely ones, as chat completions and llama.cpp give them. `known`: its id, or -1. */
int m3_read_content(struct m3_reader *r, const json_t *item, int generated, int64_t place, int32_t known,
                    const char *where);

#endif
