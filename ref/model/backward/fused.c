/* The first input of the layers: embedding rows, and the rows of pictures that replace some of them. */
#include <stdlib.h>
#include <string.h>

#include "model/backward/stages.h"

/* d_features [rows,H] := the rows of d whose ids are placeholders, which become 0 in d. */
static void take_features(struct m3_backward *b, real *d_features, real *d, int64_t images, int64_t videos)
{
    const struct m3_vision_config *v = &b->model->config.vision;
    real *of_videos = d_features ? d_features + images * b->model->config.H : NULL;
    scatter_back(b, d, d_features, d, v->image_token, images);
    scatter_back(b, d, of_videos, d, v->video_token, videos);
}

void m3_backward_fused(struct m3_backward *b)
{
    struct m3_pass *f = &b->f;
    const struct m3_pictures *pictures = b->how.pictures;
    real *d = b->traces[b->b].d, *d_features = NULL;
    f->layer = -1;
    shown(b, M3_TAP_FUSED, d);
    if (pictures) {
        const struct m3_vision_config *v = &b->model->config.vision;
        const int64_t images = m3_pictures_image_tokens(pictures, v), videos = m3_pictures_video_tokens(pictures, v);
        d_features = m3_pass_need(f, images + videos, b->model->config.H, sizeof *d_features);
        take_features(b, d_features, d, images, videos);
    }
    shown(b, M3_TAP_EMBED, d);
    embed_back(b, d, b->how.ids);
    if (pictures) m3_backward_tower(b, d_features);
    free(d_features);
}
