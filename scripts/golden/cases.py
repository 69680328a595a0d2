"""The cases as data. `seed` is the smallest from 1 on that make.py --search accepts; weights and ids follow from it."""

from dataclasses import dataclass, field, replace

VISION = {"hidden_size": 12, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 20}


@dataclass
class Case:
    name: str
    seed: int
    style: str                       # "bf16", "mxfp8", "f8_block", "fourbit": how the matrices are stored
    tokens: int
    layer_map: list                  # per layer: 0 full attention + dense MLP, 1 sparse attention + MoE
    text: dict
    sparse: dict
    vision: dict
    top: dict
    covers: str
    cannot_detect: str
    rows: list = field(default_factory=list)      # the golden holds these rows only; empty: all
    fine_router: bool = False                     # router and bias get bits that BF16 does not hold


TINY = Case(
    name="tiny", seed=1, style="bf16", tokens=67, layer_map=[0, 0, 1, 1, 1], fine_router=True,
    text={"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20, "rotary_dim": 12,
          "partial_rotary_factor": 0.6, "num_local_experts": 11, "num_experts_per_tok": 5, "intermediate_size": 44,
          "dense_intermediate_size": 72, "shared_intermediate_size": 56, "vocab_size": 211,
          "max_position_embeddings": 1048576},
    sparse={"sparse_index_dim": 16, "sparse_num_index_heads": 2, "sparse_block_size": 4, "sparse_topk_blocks": 3},
    vision={"hidden_size": 42, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 60},
    top={"projector_hidden_size": 52, "image_token_index": 200, "video_token_index": 201},
    covers="every text tap of full and sparse attention, dense MLP and MoE; pairwise different dimensions; a partial "
           "last block; rows with fewer, as many and more visible blocks than are kept; gate and up beyond the clamp; "
           "a router that is not exact in BF16",
    cannot_detect="ties; sums of released length; positions in the thousands; pictures; a block or head size that only "
                  "works as a power of two or a multiple of 32")

BLOCK128 = Case(
    name="block128", seed=1, style="bf16", tokens=2305, layer_map=[1],
    rows=[0, 1, 2, 63, 64, 126, 127, 128, 129, 255, 256, 257, 511, 1023, 1024, 1535, 1791, 1919, 1920, 2046, 2047,
          2048, 2049, 2050, 2079, 2111, 2112, 2143, 2175, 2176, 2177, 2207, 2239, 2240, 2271, 2302, 2303, 2304],
    text={"hidden_size": 72, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128, "rotary_dim": 64,
          "partial_rotary_factor": 0.5, "num_local_experts": 9, "num_experts_per_tok": 3, "intermediate_size": 40,
          "dense_intermediate_size": 56, "shared_intermediate_size": 48, "vocab_size": 131,
          "max_position_embeddings": 8192},
    sparse={"sparse_index_dim": 128, "sparse_num_index_heads": 2, "sparse_block_size": 128, "sparse_topk_blocks": 16},
    vision=VISION, top={"projector_hidden_size": 28, "image_token_index": 120, "video_token_index": 121},
    covers="released head, index, rotary and block sizes and number of kept blocks; positions 126 to 129, 2046 to "
           "2050, 2175, 2176, 2303, 2304; 17 to 19 visible blocks; angles of more than 2,000 radians",
    cannot_detect="errors in rows that are not held; a router rounded to BF16 (its weights are exact there); more than "
                  "one layer; dense MLP; fp32 angles within the error of public fp32 code (the angle64 keys do)")

MXFP8 = Case(
    name="mxfp8", seed=1, style="mxfp8", tokens=33, layer_map=[0, 1],
    rows=[0, 1, 3, 4, 11, 12, 15, 16, 22, 27, 31, 32],
    text={"hidden_size": 288, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 80, "rotary_dim": 32,
          "partial_rotary_factor": 0.4, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 160,
          "dense_intermediate_size": 192, "shared_intermediate_size": 224, "vocab_size": 151,
          "max_position_embeddings": 1048576},
    sparse={"sparse_index_dim": 136, "sparse_num_index_heads": 2, "sparse_block_size": 4, "sparse_topk_blocks": 3},
    vision=VISION, top={"projector_hidden_size": 28, "image_token_index": 120, "video_token_index": 121},
    covers="F8_E4M3 matrices with ue8m0 scales per 32 columns; neighbouring scales differ by up to 2^5",
    cannot_detect="codes beyond +-15/8, subnormal codes, NaN codes, scale bytes 0 and 255: the weights hold none; "
                  "errors in rows that are not held")

F8BLOCK = Case(
    name="f8block", seed=1, style="f8_block", tokens=33, layer_map=[0, 1],
    rows=MXFP8.rows,
    text={"hidden_size": 260, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 70, "rotary_dim": 28,
          "partial_rotary_factor": 0.4, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 150,
          "dense_intermediate_size": 190, "shared_intermediate_size": 170, "vocab_size": 151,
          "max_position_embeddings": 1048576},
    sparse={"sparse_index_dim": 134, "sparse_num_index_heads": 2, "sparse_block_size": 4, "sparse_topk_blocks": 3},
    vision=VISION, top={"projector_hidden_size": 28, "image_token_index": 120, "video_token_index": 121},
    covers="F8_E4M3 matrices with F32 scales per 128x128 block, at least 2x3 blocks a matrix, partial edge blocks",
    cannot_detect="subnormal and NaN codes; errors in "
                  "rows that are not held")

COMMON = Case(
    name="common", seed=1, style="bf16", tokens=50, layer_map=[0, 0, 1, 1, 1],
    rows=[0, 1, 3, 4, 7, 11, 12, 15, 16, 23, 31, 32, 40, 47, 48, 49],
    text=TINY.text | {"shared_intermediate_size": 44}, sparse=TINY.sparse,
    vision={"hidden_size": 160, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 60},
    top={"projector_hidden_size": 96, "image_token_index": 200, "video_token_index": 201},
    covers="every text tap of a model that each public engine can load: the shared expert is as wide as the others, "
           "the projector as wide as the model, a vision head has 80 channels; 13 blocks of which 3 are kept, and in "
           "`long` 150",
    cannot_detect="ties; a shared expert of another width, a projector of another width; a router rounded to BF16 (its "
                  "weights are exact there); pictures; errors in rows that are not held")
COMMON_LONG = replace(COMMON, tokens=600, rows=[0, 7, 63, 64, 127, 255, 256, 383, 511, 512, 598, 599])

FOURBIT = Case(
    name="fourbit", seed=1, style="fourbit", tokens=21, layer_map=[0, 1],
    rows=[0, 5, 20],
    text={"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 20, "rotary_dim": 8,
          "partial_rotary_factor": 0.4, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 32,
          "dense_intermediate_size": 96, "shared_intermediate_size": 32, "vocab_size": 101,
          "max_position_embeddings": 1048576},
    sparse={"sparse_index_dim": 24, "sparse_num_index_heads": 2, "sparse_block_size": 4, "sparse_topk_blocks": 3},
    vision=VISION, top={"projector_hidden_size": 28, "image_token_index": 90, "video_token_index": 91},
    covers="matrices of compressed-tensors in one model: attention in NVFP4, experts in MXFP4, other MLPs in W4A16; "
           "every code, all mantissas of E4M3 scales, global scales of 24 bits",
    cannot_detect="zero points, groups other than 32 for integers, ModelOpt's layouts (packed/ has them); subnormal "
                  "scales; errors in rows that are not held")

CASES = [TINY, BLOCK128, MXFP8, F8BLOCK, COMMON, FOURBIT]


@dataclass
class PictureCase:
    name: str
    seed: int
    layout: list                     # numbers of text ids, "image" and "video" in the order of the prompt
    grids: list                      # [t,h,w] per picture, images first
    images: int
    covers: str
    cannot_detect: str
    boundaries: tuple = ("segment",)
    photo: bool = False


BOTH = ("segment", "none")
VISION_CASES = [
    PictureCase("smallest", 1, [3, "image", 2], [[1, 2, 2]], 1,
                "one merged token: the least grid", "order of rows beyond one 2x2 group"),
    PictureCase("still", 1, [4, "image", 3], [[1, 6, 4]], 1,
                "more rows than columns, both frames of a patch different", "boundaries, t"),
    PictureCase("two", 1, [3, "image", 2, "image", 3], [[1, 4, 2], [1, 2, 2]], 2,
                "two stills of different shapes, in both readings of the boundary", "t, videos", BOTH),
    PictureCase("video", 1, [2, "image", 3, "video", 2], [[1, 2, 2], [5, 2, 4]], 1,
                "a still and a video of 5 steps, one more than vision_segment_max_frames, in both readings",
                "several videos; videos ahead of images in the prompt", BOTH),
    PictureCase("photo", 1, [6, "image", 5], [[1, 4, 6]], 1,
                "golden/photo.png through the public image processor; every tap of the run, text included",
                "that a still's two frames are kept apart; boundaries, t", photo=True),
]


@dataclass
class MtpCase(Case):
    """A text case and a case with one picture for a model with modules of multi-token prediction."""
    modules: int = 0
    picture: PictureCase = None
    prompt: tuple = ()               # of generate.json
    max_new: int = 0


MTP = MtpCase(
    name="mtp", seed=19, style="bf16", tokens=15, layer_map=[0, 1], modules=2, prompt=(1, 2, 3), max_new=32,
    picture=PictureCase("picture", 1, [3, "image", 4], [[1, 2, 2]], 1, "", ""),
    text={"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "rotary_dim": 6,
          "partial_rotary_factor": 0.6, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 11,
          "dense_intermediate_size": 26, "shared_intermediate_size": 14, "vocab_size": 97,
          "max_position_embeddings": 4096},
    sparse={"sparse_index_dim": 8, "sparse_num_index_heads": 2, "sparse_block_size": 3, "sparse_topk_blocks": 2},
    vision={"hidden_size": 6, "num_attention_heads": 1, "num_hidden_layers": 1, "intermediate_size": 7},
    top={"projector_hidden_size": 9, "image_token_index": 90, "video_token_index": 91},
    covers="every tap of two modules of multi-token prediction in the default reading; the other hand-over, row 0 "
           "zeroed, the additive join, the scattered row at a picture; drafting and verification under greedy "
           "decoding, with drafts accepted and rejected; blocks of 3, partial last blocks in both modules",
    cannot_detect="a misreading shared by both formulas of the modules, except in `post_norm`, which public code (NeMo) "
                  "computes too; a call on a cached prefix; sampling; more than two modules; a second picture")


@dataclass
class M2Case:
    """A model of the M2 family; `modules` of multi-token prediction are declared, `held_modules` are in the files."""
    name: str
    seed: int
    style: str
    tokens: int
    layers: int
    modules: int
    held_modules: int
    text: dict
    covers: str
    cannot_detect: str
    rows: list = field(default_factory=list)
    positions: list = field(default_factory=list)      # of the cases whose positions are not 0, 1, ..


M2 = M2Case(
    name="m2", seed=3, style="f8_block", tokens=40, layers=3, modules=3, held_modules=0, rows=[0, 1, 7, 20, 39],
    positions=[5 + 3 * t + (1000 if t >= 20 else 0) for t in range(40)],
    text={"hidden_size": 134, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 24, "rotary_dim": 12,
          "num_local_experts": 11, "num_experts_per_tok": 3, "intermediate_size": 9, "vocab_size": 61},
    covers="every tap of a model of the M2 family: plain norms, one norm over all heads of q and of k, half of a head "
           "turned, full attention, SiLU with gate and up beyond the clamp of M3, no shared expert, no factor; F8_E4M3 "
           "with F32 scales per 128x128 block, partial edge blocks in rows and columns; a router that is not exact in "
           "BF16; positions that start at 5, rise by 3 and jump; noise on the input of the experts, by places",
    cannot_detect="ties; a cached prefix, and noise behind one; places, layers and seeds beyond 32 bits in the noise; "
                  "sums of released length; errors in rows that are not held")

M2_MTP = M2Case(
    name="m2/mtp", seed=1, style="bf16", tokens=9, layers=1, modules=2, held_modules=2,
    text={"hidden_size": 20, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "rotary_dim": 4,
          "num_local_experts": 7, "num_experts_per_tok": 3, "intermediate_size": 5, "vocab_size": 37},
    covers="every tap of two modules of multi-token prediction with layers of the M2 family, joined both ways; a "
           "router and its bias in BF16",
    cannot_detect="a misreading shared by both formulas of the modules, for which there is no public code; other "
                  "positions than 0, 1, ..; what mtp/ has beside: hand-over, row 0, drafts")


@dataclass
class ReadingsCase:
    """Ids for the model of tiny; rows: those that the golden of a reading holds."""
    seed: int
    tokens: int
    hidden: list                     # places whose key the mask hides
    rows: dict
    covers: str
    cannot_detect: str


READINGS = ReadingsCase(
    seed=6, tokens=43, hidden=[0, 1, 2, 3, 4, 13, 14, 20, 21, 22, 23, 28],
    rows={"mask": [2, 4, 5, 13, 21, 42], "shared": [18, 31, 42], "union": [18, 31, 42], "lse": [17, 22, 25],
          "rsqrt": [18, 41], "lse_rsqrt": [18, 31, 39], "clamp_both": [0, 39], "init1": [13, 28, 42],
          "init2_local2": [13, 31, 42], "local2": [18, 31, 41], "local2_own": [18, 41]},
    covers="every other reading of block selection, attention and activation; more blocks forced than are kept; rows "
           "that see nothing, a hidden block, hidden keys in a block and in a row's own, itself among them",
    cannot_detect="ties; errors in rows and taps that are not held; a mask together with pictures or with another "
                  "reading")


PHOTO = {"path": "photo.png", "sha256": "e621bdcd3ed160c37069af327f898ab557c2fdbf1d42c932cf63d67e463dc3ff",
         "licence": "CC0",
         "source": "chelsea.png of scikit-image 0.26.0, which says: \"No copyright restrictions.  CC0 by the "
                   "photographer (Stefan van der Walt).\"; SHA-256 "
                   "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb; "
                   "crop((90, 10, 390, 211)), resize((97, 65), LANCZOS) with Pillow 13.0.0"}


@dataclass
class TrainCase:
    """Labels for the text of tiny and of mtp, a picture for the model of tiny, and two sequences for that of mtp."""
    seed: int
    ignored: int                     # the first labels of the text, which are -100
    rows: list                       # of taps of the text that the golden holds
    holes: tuple                     # labels of -100 among those of `all`
    lengths: tuple                   # of the two sequences
    picture: PictureCase
    covers: str
    cannot_detect: str


TRAIN = TrainCase(
    seed=1, ignored=5, rows=[0, 1, 3, 4, 5, 11, 12, 23, 40, 47, 65, 66], holes=(0, 4, 9), lengths=(15, 11),
    picture=PictureCase("train_still", 1, [4, "image", 5], [[1, 6, 4]], 1, "", ""),
    covers="gradients of every kind of parameter and of taps: full and sparse attention, dense MLP and experts, tower, "
           "projector, scattered rows, modules of multi-token prediction, the index branch; the loss of next tokens, "
           "of modules, of the router's balance, and the alignment loss in its sparse phase; ignored labels, two "
           "sequences of different lengths; on drawn operands both phases and every reading of the alignment loss, "
           "and both of the router's balance",
    cannot_detect="ties and values at a clamp; sums of released length; errors in rows and experts that the text's "
                  "golden does not hold; other readings of the model")
