/* The culprit: the first operator that fails, and the others that may be it instead. */
#include <string.h>

#include "oracle/judge/blame/private/blame.h"

/* The number of operators that are judged together, and the first of them. */
static int64_t count_together(const struct m3_blaming *b, struct m3_blame_item *item,
                              const struct m3_blame_item **first)
{
    int64_t count = 1;
    for (int j = 0; j < M3_OPERANDS; j++) {
        struct m3_blame_item *operand = m3_blame_operand(b, item, j);
        if (!operand || operand->dumped || operand->counted || operand->layer != item->layer) continue;
        operand->counted = 1;
        if (!*first || m3_tap_order(operand->tap, operand->layer, (*first)->tap, (*first)->layer) < 0) *first = operand;
        count += count_together(b, operand, first);
    }
    return count;
}

void m3_blame_count_together(const struct m3_blaming *b, struct m3_blame_item *item)
{
    const struct m3_blame_item *first = NULL;
    for (int64_t i = 0; i < b->count; i++) b->items[i].counted = 0;
    item->blamed->operators = count_together(b, item, &first);
    if (first) memcpy(item->blamed->since, first->name, sizeof first->name);
}
