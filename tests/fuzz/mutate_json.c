/* Mutations of JSON, on its tokens: a text that is not JSON is mutated too, as far as it has tokens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mutate.h"

enum { MOST_TOKENS = 4000, MOST_STRING = 400 };

struct token {
    size_t begin, end;
    char kind;                  /* '"', '0' for numbers and words, or the character itself */
};

struct tokens {
    uint8_t *text;
    size_t size, room;
    int count;
    struct token at[MOST_TOKENS];
};

static const char *const edges[] = {
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "8",
    "9",
    "127",
    "255",
    "256",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "-2147483648",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "1e308",
    "-1e308",
    "1e-320",
    "1e400",
    "0.5",
    "0.0",
    "-0.0",
    "1.5",
    "NaN",
    "true",
    "false",
    "null",
    "\"\"",
    "[]",
    "{}",
    "[[]]",
    "\"nan\"",
    "\"inf\"",
    "\"-inf\"",
    "[0]",
    "[1,2,3]",
    "[-1]",
    "\"0\"",
    "1000000",
    "16777217",
};

static const char *const words[] = {
    "",
    "*",
    "{l}",
    "{l-1}",
    "{l-9223372036854775807}",
    "{l",
    "{",
    "}",
    "{i}",
    "{v}{m}",
    "layers.0.q_proj",
    "logits",
    "rows",
    "<>&\\\"'",
    "]]>",
    "../x",
    "/",
    "\\u0001",
    "\\ud83d\\ude00",
    "%s%n",
    "F32",
    "BF16",
    "H",
    "QD+2GD",
    "Q/G",
    "a\\/b",
    "999999999999999999999",
    "-1",
    "nan",
    "inf",
    "1e999",
    "\xc3\xa9",
};

/* The end of a token that begins at i, which is no blank. */
static size_t end_of(const uint8_t *text, size_t size, size_t i)
{
    size_t end = i + 1;
    if (text[i] == '"') {
        while (end < size && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
        return end < size ? end + 1 : size;
    }
    if (strchr("{}[]:,", text[i])) return end;
    while (end < size && text[end] > ' ' && !strchr("{}[]:,\"", text[end])) end++;
    return end;
}

static void find_tokens(struct tokens *t)
{
    t->count = 0;
    for (size_t i = 0; i < t->size && t->count < MOST_TOKENS;) {
        if (t->text[i] <= ' ') {
            i++;
            continue;
        }
        const size_t end = end_of(t->text, t->size, i);
        const char first = (char)t->text[i];
        t->at[t->count++] = (struct token){ i, end, strchr("\"{}[]:,", first) ? first : '0' };
        i = end;
    }
}

/* The last token of the value that begins at token i. */
static int last_of(const struct tokens *t, int i)
{
    int depth = 0;
    for (int k = i; k < t->count; k++) {
        depth += t->at[k].kind == '{' || t->at[k].kind == '[';
        depth -= t->at[k].kind == '}' || t->at[k].kind == ']';
        if (depth <= 0) return k;
    }
    return t->count - 1;
}

/* A token that begins a value; -1: none was found. Names of members are values too. */
static int some_value(const struct tokens *t, struct dice *dice)
{
    for (int attempt = 0; attempt < 20; attempt++) {
        const int i = (int)roll(dice, (uint64_t)t->count);
        if (strchr("\"0{[", t->at[i].kind)) return i;
    }
    return -1;
}

/* Replaces bytes [begin, end) by others, which may lie in the text. */
static void put(struct tokens *t, size_t begin, size_t end, const void *bytes, size_t count)
{
    if (t->size - (end - begin) + count > t->room) return;
    uint8_t *copy = malloc(count + 1);
    if (!copy) abort();
    if (count) memcpy(copy, bytes, count);
    memmove(t->text + begin + count, t->text + end, t->size - end);
    if (count) memcpy(t->text + begin, copy, count);
    t->size = t->size - (end - begin) + count;
    free(copy);
}

/* A member with its name, or an element, goes with one comma beside it. */
static void drop(struct tokens *t, int i)
{
    int first = i, last = last_of(t, i);
    if (last + 2 < t->count && t->at[last + 1].kind == ':') last = last_of(t, last + 2);
    else if (first >= 2 && t->at[first - 1].kind == ':') first -= 2;
    if (last + 1 < t->count && t->at[last + 1].kind == ',') last++;
    else if (first > 0 && t->at[first - 1].kind == ',') first--;
    put(t, t->at[first].begin, t->at[last].end, "", 0);
}

/* Another member of the same value: its name gets one more character. */
static void twice(struct tokens *t, int i)
{
    int last = last_of(t, i);
    const int is_name = last + 2 < t->count && t->at[last + 1].kind == ':';
    if (is_name) last = last_of(t, last + 2);
    const size_t begin = t->at[i].begin, length = t->at[last].end - begin;
    char *copy = malloc(length + 3);
    if (!copy) abort();
    copy[0] = ',';
    memcpy(copy + 1, t->text + begin, length);
    if (is_name) {
        memmove(copy + 3, copy + 2, length - 1);
        copy[2] = 'x';
    }
    put(t, begin + length, begin + length, copy, length + 1 + (size_t)is_name);
    free(copy);
}

static void change_string(struct tokens *t, const struct token *token, struct dice *dice)
{
    uint8_t inside[MOST_STRING];
    size_t length = token->end - token->begin < 2 ? 0 : token->end - token->begin - 2;
    if (length > sizeof inside) length = sizeof inside;
    memcpy(inside, t->text + token->begin + 1, length);
    if (roll(dice, 2)) {
        const char *word = words[roll(dice, sizeof words / sizeof *words)];
        const size_t at = roll(dice, length + 1), more = strlen(word);
        if (roll(dice, 2) || length + more > sizeof inside) length = 0;
        const size_t place = at < length ? at : length;
        memmove(inside + place + more, inside + place, length - place);
        memcpy(inside + place, word, more);
        length += more;
    } else {
        length = LLVMFuzzerMutate(inside, length, sizeof inside);
    }
    put(t, token->begin + 1, token->end > token->begin + 1 ? token->end - 1 : token->end, inside, length);
}

static void change_number(struct tokens *t, const struct token *token, struct dice *dice)
{
    char text[64];
    const size_t length = token->end - token->begin;
    if (length >= sizeof text) return;
    memcpy(text, t->text + token->begin, length);
    text[length] = '\0';
    const long long value = strtoll(text, NULL, 10);
    const long long near[] = { 1, -1, 2, value < 1000000000 && value > -1000000000 ? value : 0, -value / 2 };
    const unsigned long long sum = (unsigned long long)value + (unsigned long long)near[roll(dice, 5)];
    put(t, token->begin, token->end, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)sum));
}

static void change_value(struct tokens *t, struct dice *dice)
{
    const int i = some_value(t, dice), other = some_value(t, dice);
    if (i < 0 || other < 0) return;
    const struct token *token = &t->at[i];
    const size_t end = t->at[last_of(t, i)].end, from = t->at[other].begin;
    const char *edge = edges[roll(dice, sizeof edges / sizeof *edges)];
    switch (roll(dice, 8)) {
    case 0:
    case 1:
        if (token->kind == '"') change_string(t, token, dice);
        else if (token->kind == '0') change_number(t, token, dice);
        else put(t, token->begin, end, edge, strlen(edge));
        break;
    case 2: put(t, token->begin, end, edge, strlen(edge)); break;
    case 3: put(t, token->begin, end, t->text + from, t->at[last_of(t, other)].end - from); break;
    case 4: drop(t, i); break;
    case 5: twice(t, i); break;
    case 6:
        edge = roll(dice, 2) ? "]" : ",0]";
        put(t, end, end, edge, strlen(edge));
        put(t, token->begin, token->begin, "[", 1);
        break;
    default: change_string(t, token, dice);
    }
}

size_t mutate_json(uint8_t *text, size_t size, size_t room, struct dice *dice)
{
    struct tokens t = { .text = text, .size = size, .room = room };
    for (uint64_t changes = 1 + roll(dice, 3); changes-- > 0;) {
        find_tokens(&t);
        if (t.count == 0) return LLVMFuzzerMutate(text, t.size, room);
        change_value(&t, dice);
    }
    return t.size;
}
