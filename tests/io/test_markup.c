/* Links to headings of a Markdown file. */
#include "io/markup.h"

#include <check.h>

/* As the site that shows SPEC.md makes them of headings. */
TEST(anchors)
{
    static const char *const pairs[][2] = {
        { "5.10 attend_blocks", "510-attend_blocks" },
        { "6. The forward pass", "6-the-forward-pass" },
        { "10.5 Patches", "105-patches" },
    };
    for (int i = 0; i < 3; i++) {
        char text[64] = "";
        FILE *out = fmemopen(text, sizeof text, "w");
        m3_print_anchor(out, pairs[i][0]);
        fclose(out);
        ck_assert_str_eq(text, pairs[i][1]);
    }
}
