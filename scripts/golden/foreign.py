"""Models of other families, to compare with: the public config of Llama 3 70B, and models given by a few published
numbers, in the form of SPEC 14.9. What is not published, or cannot be turned into a figure, is left out."""


def few(name, source, parameters, active=None, attention=None):
    config = {"model_type": "m3ref_comparison", "name": name, "source": source, "parameters": parameters}
    if active:
        config["active_parameters"] = active
    return config | (attention or {})


def llama_3_70b():
    return {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 8192,
        "initializer_range": 0.02, "intermediate_size": 28672, "max_position_embeddings": 8192, "model_type": "llama",
        "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 500000.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.40.0.dev0", "use_cache": True, "vocab_size": 128256,
    }


def grouped(layers, heads, groups, positions):
    return {"attention_layers": layers, "num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": 128,
            "max_position_embeddings": positions}


def latent(layers, positions):
    return {"attention_layers": layers, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
            "max_position_embeddings": positions}


CARD = "public model card"
BOTH = "public model card and config"

CONFIGS = {
    "llama-3-70b": llama_3_70b(),
    "llama-3-70b-rounded": few("Llama 3 70B, rounded", "70e9 parameters; attention of the public config", 70 * 10**9,
                               None, grouped(80, 64, 8, 8192)),
    "nemotron-3-ultra": few("Nemotron 3 Ultra", BOTH, 550 * 10**9, 55 * 10**9, grouped(12, 64, 2, 262144)),
    "kimi-k2.5": few("Kimi K2.5", BOTH, 10**12, 32 * 10**9, latent(61, 262144)),
    "glm-5.1": few("GLM-5.1", CARD, 744 * 10**9, 40 * 10**9),
    "qwen3.5-moe": few("Qwen3.5 MoE", CARD, 35 * 10**9, 3 * 10**9),
    "mimo-v2-flash": few("MiMo-V2-Flash", CARD, 309 * 10**9, 15 * 10**9),
}
