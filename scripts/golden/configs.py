"""config.json of the two releases and of the small models, in the released form, and the tensors that follow."""

import copy

PATCH = (3, 2, 14, 14)


def minimax_m3():
    """The BF16 release, field by field."""
    freq = [0] * 3 + [1] * 57
    sizes = range(336, 2017, 336)
    compression = {"image_token_compression_method": "patch_merge", "spatial_merge_size": 2, "temporal_patch_size": 2}
    text = {
        "hidden_size": 6144, "intermediate_size": 3072, "num_hidden_layers": 60, "num_attention_heads": 64,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 200064, "max_position_embeddings": 1048576,
        "rms_norm_eps": 1e-06, "use_gemma_norm": True, "attention_output_gate": False, "rope_theta": 5000000,
        "rotary_dim": 64, "partial_rotary_factor": 0.5, "hidden_act": "swigluoai", "use_qk_norm": True,
        "tie_word_embeddings": False, "dense_intermediate_size": 12288, "shared_intermediate_size": 3072,
        "num_local_experts": 128, "num_experts_per_tok": 4, "n_shared_experts": 1, "scoring_func": "sigmoid",
        "use_routing_bias": True, "moe_layer_freq": list(freq), "qk_norm_type": "per_head", "num_mtp_modules": 7,
        "num_nextn_predict_layers": 1, "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "routed_scaling_factor": 2.0,
        "sparse_attention_config": {
            "use_sparse_attention": True, "sparse_index_dim": 128, "sparse_num_index_heads": 4,
            "sparse_topk_blocks": 16, "sparse_block_size": 128, "sparse_disable_index_value": list(freq),
            "sparse_score_type": "max", "sparse_init_block": 0, "sparse_local_block": 1,
            "sparse_attention_freq": list(freq),
        },
        "architectures": ["MiniMaxM3SparseForCausalLM"],
    }
    vision = {
        "hidden_size": 1280, "num_attention_heads": 16, "num_hidden_layers": 32, "intermediate_size": 5120,
        "patch_size": 14, "image_size": 2016, "projection_dim": 6144, "position_embedding_type": "rope",
        "rope_mode": "3d", "rope_theta": 10000.0, "attention_dropout": 0.0, "hidden_act": "gelu",
        "initializer_factor": 1.0, "initializer_range": 0.02, "layer_norm_eps": 1e-05,
        "model_type": "clip_vision_model", "num_channels": 3, "vocab_size": 32000,
        "img_token_compression_config": dict(compression), "vision_segment_max_frames": 4,
    }
    return {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "auto_map": {"AutoConfig": "configuration_minimax_m3_vl.MiniMaxM3VLConfig"},
        "model_type": "minimax_m3_vl", "text_config": text, "vision_config": vision,
        "img_token_compression_config": dict(compression),
        "image_grid_pinpoints": str([(h, w) for h in sizes for w in sizes]), "image_seq_length": 576,
        "image_token_index": 200025, "video_token_index": 200026, "multimodal_projector_bias": True,
        "num_reward_heads": 0, "process_image_mode": "dynamic_res", "projector_hidden_act": "gelu",
        "vision_feature_layer": -1, "vision_feature_select_strategy": "full", "torch_dtype": "bfloat16",
        "transformers_version": "4.52.4", "projector_hidden_size": 6144,
    }


def quantization(style, moe_layers):
    """quantization_config of the MXFP8 release (its list ends with the routers, sorted as text), or the block form."""
    kept = ["lm_head", "model.embed_tokens", "vision_tower", "multi_modal_projector", "patch_merge_mlp"]
    kept += sorted(f"language_model.model.layers.{layer}.block_sparse_moe.gate" for layer in moe_layers)
    if style == "mxfp8":
        return {"quant_method": "mxfp8", "activation_scheme": "dynamic", "weight_block_size": [1, 32],
                "ignored_layers": kept}
    return {"quant_method": "fp8", "fmt": "float8_e4m3fn", "activation_scheme": "dynamic",
            "weight_block_size": [128, 128], "modules_to_not_convert": kept}


def four_bits():
    """quantization_config of compressed-tensors for a model whose matrices have three forms."""
    def group(targets, form, kind, strategy, size):
        weights = {"num_bits": 4, "type": kind, "symmetric": True, "strategy": strategy, "group_size": size,
                   "dynamic": False}
        return {"targets": [targets], "format": form, "weights": weights, "input_activations": None}

    return {"quant_method": "compressed-tensors", "format": "mixed-precision", "quantization_status": "compressed",
            "config_groups": {
                "group_0": group("re:.*self_attn.*", "nvfp4-pack-quantized", "float", "tensor_group", 16),
                "group_1": group("re:.*experts\\.[0-9]+.*", "mxfp4-pack-quantized", "float", "group", 32),
                "group_2": group("re:.*(mlp|shared_experts).*", "pack-quantized", "int", "group", 32)},
            "ignore": ["re:.*lm_head$", "re:.*embed_tokens$", "re:.*vision_tower.*", "re:.*multi_modal_projector.*",
                       "re:.*patch_merge_mlp.*", "re:.*block_sparse_moe.gate$"]}


def minimax_m3_mxfp8():
    """The MXFP8 release: what differs from the BF16 release."""
    config = minimax_m3()
    text = config["text_config"]
    config["text_config"] = {"dtype": "bfloat16", **text, "num_mtp_modules": 1}
    del config["text_config"]["num_nextn_predict_layers"]
    config["quantization_config"] = quantization("mxfp8", range(3, 60))
    return config


def minimax_m2_7():
    """M2.7, by document 001, section 2.1: the file itself is not available."""
    return {
        "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2",
        "hidden_size": 3072, "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8,
        "head_dim": 128, "rotary_dim": 64, "rope_theta": 5000000, "intermediate_size": 1536, "hidden_act": "silu",
        "num_local_experts": 256, "num_experts_per_tok": 8, "shared_intermediate_size": 0, "scoring_func": "sigmoid",
        "use_routing_bias": True, "use_qk_norm": True, "qk_norm_type": "per_layer", "attn_type_list": [1] * 62,
        "max_position_embeddings": 204800, "vocab_size": 200064, "rms_norm_eps": 1e-06, "tie_word_embeddings": False,
        "use_mtp": True, "num_mtp_modules": 3, "mtp_transformer_layers": 1, "dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "fmt": "float8_e4m3fn", "weight_block_size": [128, 128],
                                "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]},
    }


def minimax_m2():
    """M2: the shapes of M2.7, with the positions of the public class."""
    return minimax_m2_7() | {"max_position_embeddings": 196608}


def small(text, sparse, vision, top, layer_map, style, modules=0):
    """A small model: the release with these fields replaced. layer_map: 0 dense, 1 sparse attention + MoE; modules:
    of multi-token prediction."""
    config = copy.deepcopy(minimax_m3())
    del config["auto_map"], config["text_config"]["num_nextn_predict_layers"]
    config["text_config"] |= text | {"num_hidden_layers": len(layer_map), "num_mtp_modules": modules,
                                     "moe_layer_freq": list(layer_map)}
    config["text_config"]["sparse_attention_config"] |= sparse | {
        "sparse_attention_freq": list(layer_map), "sparse_disable_index_value": list(layer_map)}
    config["vision_config"] |= vision | {"projection_dim": text["hidden_size"]}
    config |= top
    if style != "bf16":
        moe_layers = [l for l, kind in enumerate(layer_map) if kind]
        config["quantization_config"] = four_bits() if style == "fourbit" else quantization(style, moe_layers)
    return config


def layer_shapes(text, prefix, sparse_attention, moe):
    """{name: shape} of one decoder layer."""
    H, D = text["hidden_size"], text["head_dim"]
    QD, GD = text["num_attention_heads"] * D, text["num_key_value_heads"] * D
    attention, shapes = prefix + "self_attn.", {}

    def mlp(name, gate, up, down, width):
        shapes[name + gate], shapes[name + up], shapes[name + down] = (width, H), (width, H), (H, width)

    shapes[prefix + "input_layernorm.weight"] = shapes[prefix + "post_attention_layernorm.weight"] = (H,)
    for name, shape in {"q_proj": (QD, H), "k_proj": (GD, H), "v_proj": (GD, H), "o_proj": (H, QD),
                        "q_norm": (D,), "k_norm": (D,)}.items():
        shapes[f"{attention}{name}.weight"] = shape
    if sparse_attention:
        index = text["sparse_attention_config"]
        X = index["sparse_index_dim"]
        for name, shape in {"q_proj": (index["sparse_num_index_heads"] * X, H), "k_proj": (X, H),
                            "q_norm": (X,), "k_norm": (X,)}.items():
            shapes[f"{attention}index_{name}.weight"] = shape
    linear = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
    if not moe:
        mlp(prefix + "mlp.", *linear, text["dense_intermediate_size"])
        return shapes
    block = prefix + "block_sparse_moe."
    shapes[block + "gate.weight"] = (text["num_local_experts"], H)
    shapes[block + "e_score_correction_bias"] = (text["num_local_experts"],)
    for expert in range(text["num_local_experts"]):
        mlp(f"{block}experts.{expert}.", "w1.weight", "w3.weight", "w2.weight", text["intermediate_size"])
    mlp(block + "shared_experts.", *linear, text["shared_intermediate_size"])
    return shapes


def vision_shapes(config):
    """{name: shape} of the vision tower and the projector."""
    vision, H, hidden = config["vision_config"], config["text_config"]["hidden_size"], config["projector_hidden_size"]
    W, width, tower = vision["hidden_size"], vision["intermediate_size"], "vision_tower.vision_model."
    shapes = {tower + "embeddings.patch_embedding.weight": (W, *PATCH)}

    def affine(name, *shape):
        shapes[name + ".weight"], shapes[name + ".bias"] = shape, shape[:1]

    affine(tower + "pre_layrnorm", W)
    for layer in range(vision["num_hidden_layers"]):
        prefix = f"{tower}encoder.layers.{layer}."
        affine(prefix + "layer_norm1", W)
        affine(prefix + "layer_norm2", W)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            affine(f"{prefix}self_attn.{name}", W, W)
        affine(prefix + "mlp.fc1", width, W)
        affine(prefix + "mlp.fc2", W, width)
    merged = H * vision["img_token_compression_config"]["spatial_merge_size"] ** 2
    affine("multi_modal_projector.linear_1", hidden, W)
    affine("multi_modal_projector.linear_2", H, hidden)
    affine("patch_merge_mlp.linear_1", hidden, merged)
    affine("patch_merge_mlp.linear_2", H, hidden)
    return shapes


def mtp_shapes(text, module):
    """{name: shape} of one module of multi-token prediction: the names that engines expect, in no release."""
    H, prefix = text["hidden_size"], f"language_model.model.mtp.layers.{module}."
    shapes = {f"{prefix}{name}.weight": (H,) for name in ("enorm", "hnorm", "final_layernorm")}
    shapes[prefix + "eh_proj.weight"] = (H, 2 * H)
    return shapes | layer_shapes(text, prefix + "transformer_layer.", True, True)


def tensor_shapes(config):
    """{released name: shape} of every tensor of the model, without modules of multi-token prediction."""
    text = config["text_config"]
    table = (text["vocab_size"], text["hidden_size"])
    shapes = {"language_model.model.embed_tokens.weight": table, "language_model.lm_head.weight": table,
              "language_model.model.norm.weight": table[1:]}
    kinds = zip(text["sparse_attention_config"]["sparse_attention_freq"], text["moe_layer_freq"])
    for layer, (sparse_attention, moe) in enumerate(kinds):
        shapes |= layer_shapes(text, f"language_model.model.layers.{layer}.", sparse_attention, moe)
    return shapes | vision_shapes(config)
