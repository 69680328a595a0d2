#include "oracle/picture/picture.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "io/markup.h"
#include "oracle/picture/private/picturing.h"
#include "oracle/report/page.h"

/* ---- the dump */

static int is_integer(const struct m3_tensor *t) { return t->dtype == M3_I32 || t->dtype == M3_I64; }

/* Have all taps the rank and the kind of numbers that they should have? The panels then rely on it. */
static int check_taps(const struct m3_safetensors *dump, struct m3_error *error)
{
    for (int64_t i = 0; i < m3_safetensors_count(dump); i++) {
        const struct m3_tensor *t = m3_safetensors_at(dump, i);
        enum m3_tap tap;
        int64_t layer;
        if (m3_tap_parse(t->name, &tap, &layer)) continue;
        const int rank = (int)strlen(m3_tap_table[tap].shape), whole = m3_tap_table[tap].kind != M3_KIND_REALS;
        if (t->rank == rank && is_integer(t) == whole) continue;
        return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s of rank %d, expected %s of rank %d",
                       m3_safetensors_path(dump), t->name, m3_dtype_name(t->dtype), t->rank, whole ? "I32" : "floats",
                       rank);
    }
    return M3_OK;
}

const struct m3_tensor *m3_picture_tap(struct m3_picturing *p, enum m3_tap tap, int64_t layer)
{
    char name[96];
    if (m3_tap_name(name, sizeof name, tap, layer)) return NULL;
    const struct m3_tensor *t = m3_safetensors_find(p->request->dump, name);
    return t && t->count > 0 ? t : NULL;
}

int m3_picture_layers(struct m3_picturing *p, enum m3_tap tap, int64_t layers[M3_PICTURE_LAYERS])
{
    int count = 0;
    for (int64_t i = 0; i < m3_safetensors_count(p->request->dump); i++) {
        enum m3_tap other;
        int64_t layer;
        if (m3_tap_parse(m3_safetensors_at(p->request->dump, i)->name, &other, &layer) || other != tap) continue;
        if (count == M3_PICTURE_LAYERS || !m3_picture_tap(p, tap, layer)) continue;
        int at = count++;
        for (; at > 0 && layers[at - 1] > layer; at--) layers[at] = layers[at - 1];
        layers[at] = layer;
    }
    return count;
}

double m3_picture_at(const struct m3_tensor *tensor, int64_t i) { return m3_decode(tensor->dtype, tensor->data, i); }

int32_t m3_picture_id(const struct m3_tensor *ids, int64_t i)
{
    const double id = m3_picture_at(ids, i);
    return id > INT32_MIN && id < INT32_MAX ? (int32_t)id : -1;
}

int64_t m3_picture_row(const struct m3_picturing *p, int64_t r)
{
    const struct m3_tensor *rows = m3_safetensors_find(p->request->dump, "rows");
    return rows && is_integer(rows) && r < rows->count ? m3_picture_id(rows, r) : r;
}

void m3_picture_layer_name(char *name, size_t size, int64_t layer)
{
    const int64_t module = m3_mtp_module_of(layer);
    if (module < 0) snprintf(name, size, "layers.%" PRId64, layer);
    else snprintf(name, size, "mtp.%" PRId64 ".layer", module);
}

/* ---- panels */

FILE *m3_panel_begin(struct m3_picturing *p, int width, int height, const char *title)
{
    if (p->status || p->picture->count == M3_MOST_PANELS) return NULL;
    p->panel = &p->picture->panels[p->picture->count];
    *p->panel = (struct m3_panel){ .width = width, .height = height };
    snprintf(p->panel->title, sizeof p->panel->title, "%s", title);
    p->stream = (struct m3_memory_stream){ 0 };
    if (m3_memory_open(&p->stream)) return p->stream.out;
    p->status = m3_fail_memory(p->error, title, 0);
    return NULL;
}

void m3_panel_note(struct m3_picturing *p, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(p->panel->note, sizeof p->panel->note, format, list);
    va_end(list);
}

void m3_panel_end(struct m3_picturing *p)
{
    p->panel->drawing = m3_memory_close(&p->stream);
    if (p->panel->drawing) p->picture->count++;
    else p->status = m3_fail_memory(p->error, p->panel->title, 0);
}

int m3_picture_make(struct m3_picture *picture, const struct m3_picture_request *request, struct m3_error *error)
{
    struct m3_picturing p = { .request = request, .picture = picture, .error = error };
    *picture = (struct m3_picture){ 0 };
    if (m3_safetensors_find(request->dump, "sequences"))
        return m3_fail(error, M3_BAD_INPUT, "%s: got several sequences, expected one",
                       m3_safetensors_path(request->dump));
    if (check_taps(request->dump, error)) return M3_BAD_INPUT;
    m3_picture_blocks(&p);
    m3_picture_mass(&p);
    m3_picture_experts(&p);
    m3_picture_margins(&p);
    m3_picture_norms(&p);
    m3_picture_lens(&p);
    m3_picture_drafts(&p);
    m3_picture_patches(&p);
    if (!p.status && picture->count == 0)
        p.status = m3_fail(error, M3_BAD_INPUT, "%s: got no tap that can be drawn", m3_safetensors_path(request->dump));
    return p.status;
}

void m3_picture_free(struct m3_picture *picture)
{
    for (int i = 0; i < picture->count; i++) free(picture->panels[i].drawing);
    m3_error_free(&picture->notes);
    picture->count = 0;
}

/* ---- output */

static void print_notes(FILE *out, const struct m3_picture *picture)
{
    const char *at = m3_error_lines(&picture->notes), *line;
    size_t length;
    while (at && (line = m3_next_line(&at, &length)) != NULL) {
        fputs("<p class=\"quiet\">", out);
        m3_print_markup_part(out, line, length);
        fputs("</p>\n", out);
    }
}

int m3_picture_html(FILE *out, const struct m3_picture *picture, const char *name, struct m3_error *error)
{
    char title[300];
    if (m3_notes_whole(&picture->notes, error)) return M3_INTERNAL;
    snprintf(title, sizeof title, "m3ref picture: %s", name);
    m3_page_begin(out, title, "m3ref picture");
    fputs("<h1>", out);
    m3_print_markup(out, name);
    fputs("</h1>\n", out);
    print_notes(out, picture);
    for (int i = 0; i < picture->count; i++) {
        const struct m3_panel *panel = &picture->panels[i];
        fputs("<h2>", out);
        m3_print_markup(out, panel->title);
        fputs("</h2>\n<p class=\"quiet\">", out);
        m3_print_markup(out, panel->note);
        fprintf(out, "</p>\n<svg viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\">\n%s</svg>\n",
                panel->width, panel->height, panel->width, panel->height, panel->drawing);
    }
    m3_page_end(out);
    return m3_report_end(out, "the page", error);
}

/* A note in lines of a width that fits. Returns the number of lines. */
static int print_lines(FILE *out, const char *text, int y)
{
    enum { WIDE = 150 };
    int lines = 0;
    while (*text) {
        size_t length = strlen(text);
        if (length > WIDE)
            for (length = WIDE; length > 1 && text[length] != ' ';) length--;
        if (out) {
            fprintf(out, "<text x=\"24\" y=\"%d\">", y + lines * 16);
            m3_print_markup_part(out, text, length);
            fputs("</text>\n", out);
        }
        text += length + (text[length] == ' ');
        lines++;
    }
    return lines;
}

int m3_picture_svg(FILE *out, const struct m3_picture *picture, const char *name, struct m3_error *error)
{
    enum { TITLE = 34, HEAD = 44 };
    int height = HEAD, width = M3_PANEL_WIDTH + 48, y = HEAD;
    for (int i = 0; i < picture->count; i++)
        height += TITLE + 16 * print_lines(NULL, picture->panels[i].note, 0) + picture->panels[i].height + 16;
    fprintf(out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" "
            "height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\">\n<title>",
            width, height, width, height);
    m3_print_markup(out, name);
    fputs("</title>\n", out);
    m3_page_style(out);
    fputs("<rect width=\"100%\" height=\"100%\" fill=\"var(--paper)\"/>\n<text class=\"head\" x=\"24\" y=\"30\">m3ref "
          "picture: ",
          out);
    m3_print_markup(out, name);
    fputs("</text>\n", out);
    for (int i = 0; i < picture->count; i++) {
        const struct m3_panel *panel = &picture->panels[i];
        fprintf(out, "<text class=\"head\" x=\"24\" y=\"%d\">", y + 20);
        m3_print_markup(out, panel->title);
        fputs("</text>\n", out);
        y += TITLE;
        y += 16 * print_lines(out, panel->note, y + 2);
        fprintf(out, "<svg x=\"24\" y=\"%d\" width=\"%d\" height=\"%d\">\n%s</svg>\n", y, panel->width, panel->height,
                panel->drawing);
        y += panel->height + 16;
    }
    fputs("</svg>\n", out);
    return m3_report_end(out, "the picture", error);
}
