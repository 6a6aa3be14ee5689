"""The side of llama.cpp in generate.py: writes a model of Hugging Face as a bf16 GGUF file, or times prefill and decoding.

It needs the Python packages gguf and llama-cpp-python (which contains llama.cpp; LLAMA_CPP_LIB_PATH names the folder of
another build of libllama.so). The calls of the library are timed directly: a call of llama_decode() per token. The
vocabulary of the file has no texts, and its weights are random, so the rows of q and k are not permuted.
"""
import argparse
import json
import pathlib
import statistics
import time

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True, help="the directory of Hugging Face; the GGUF file is written into it")
parser.add_argument("--make", action="store_true")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--precision", default="bf16")
parser.add_argument("--prompt", type=int, default=256)
parser.add_argument("--tokens", type=int, default=64)
args = parser.parse_args()
folder = pathlib.Path(args.model)
target = folder.parent / f"{folder.name}-{args.precision}.gguf"

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def gguf_name(name):
    if name.startswith("model.layers."):
        number, rest = name.removeprefix("model.layers.").split(".", 1)
        return f"blk.{number}.{NAMES[rest.removesuffix('.weight')]}.weight"
    return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight"}[name]


def make():
    import gguf
    import safetensors.torch
    import torch

    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    for name, tensor in safetensors.torch.load_file(folder / "model.safetensors").items():
        if tensor.ndim == 1 or args.precision == "fp32":
            writer.add_tensor(gguf_name(name), tensor.float().numpy())
        else:
            bits = tensor.to(torch.bfloat16).view(torch.uint16).numpy()
            writer.add_tensor(gguf_name(name), bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def measure():
    import llama_cpp

    quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(quiet, None)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(str(target).encode(), llama_cpp.llama_model_default_params())
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = args.prompt + args.tokens + 64
    parameters.n_batch = parameters.n_ubatch = 512
    parameters.n_threads = parameters.n_threads_batch = args.threads
    context = llama_cpp.llama_init_from_model(model, parameters)

    def decode(ids):
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, len(ids))) == 0
        llama_cpp.llama_synchronize(context)
        return llama_cpp.llama_get_logits_ith(context, -1)[0]

    prompt = [int(i) for i in np.random.default_rng(1).integers(3, 500, args.prompt)]
    prefill, steps = [], []
    for _ in range(3):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        begin = time.perf_counter()
        decode(prompt)
        prefill.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        for i in range(args.tokens - 1):
            decode([prompt[i % len(prompt)]])
        steps.append((time.perf_counter() - begin) / (args.tokens - 1))
    print(json.dumps({"prefill_seconds": min(prefill), "decode_seconds": statistics.median(steps)}))


if args.make:
    make()
else:
    measure()
