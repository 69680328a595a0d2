/* A forward pass: vision, text, multi-token prediction. */
#ifndef M3_MODEL_FORWARD_H
#define M3_MODEL_FORWARD_H

#include "model/request.h"

int m3_forward(const struct m3_model *model, const struct m3_request *request, struct m3_error *error);
int m3_forward_mtp(const struct m3_model *model, const struct m3_mtp_request *request, struct m3_error *error);

/* forward_tap.c */
int m3_forward_tap(const struct m3_model *model, const struct m3_tap_request *request, struct m3_error *error);

#endif
