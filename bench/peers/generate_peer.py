"""The other sides of generate.py: make the model of random weights, or time prefill and decoding with it.

  transformers   a model of Hugging Face
  llamacpp       the same as a GGUF file. Needs the Python packages torch, gguf and llama-cpp-python (which contains llama.cpp;
                 LLAMA_CPP_LIB_PATH names the folder of another build of libllama.so). The calls of the library are timed
                 directly: a call of llama_decode() per token. The vocabulary of the file has no texts, and its weights are
                 random, so the rows of q and k are not permuted.
"""
import json
import pathlib
import statistics
import sys
import time

import torch

sys.path.insert(0, sys.path[0] + "/..")
import torch_peer  # noqa: E402


def dtype_of(args):
    return torch.bfloat16 if args.precision == "bf16" else torch.float32


def seconds_of(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def make_transformers(args):
    torch.manual_seed(1)
    torch_peer.smollm(bos_token_id=1, eos_token_id=2).to(torch.bfloat16).save_pretrained(args.model)


def measure_transformers(args):
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype_of(args)).eval()
    ids = torch.randint(3, 500, (args.batch, args.prompt))

    def seconds(n):
        with torch.inference_mode():
            return seconds_of(lambda: model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                                                     min_new_tokens=n, max_new_tokens=n, pad_token_id=0))

    seconds(2)
    prefill = min(seconds(1) for _ in range(3))
    whole = min(seconds(args.tokens) for _ in range(2))
    weights = torch.ones(1 << 27, dtype=torch.bfloat16)  # 256 MiB
    target = torch.empty_like(weights)
    a, b = (torch.randn(1024, 1024, dtype=dtype_of(args)) for _ in range(2))
    rate = lambda work, amount: amount / min(seconds_of(work) for _ in range(12))
    return {"prefill_seconds": prefill, "decode_seconds": (whole - prefill) / (args.tokens - 1),
            "read_bytes_per_second": rate(lambda: weights.view(torch.float32).sum(), weights.numel() * 2),
            "copy_bytes_per_second": rate(lambda: target.copy_(weights), weights.numel() * 4),
            "matmul_flops": rate(lambda: a @ b, 2 * 1024**3)}


NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def gguf_name(name):
    if name.startswith("model.layers."):
        number, rest = name.removeprefix("model.layers.").split(".", 1)
        return f"blk.{number}.{NAMES[rest.removesuffix('.weight')]}.weight"
    return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight"}[name]


def gguf_file(args):
    return pathlib.Path(f"{args.model}-{args.precision}.gguf")


def make_llamacpp(args):
    import gguf
    import safetensors.torch
    folder = pathlib.Path(args.model)
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(gguf_file(args), "llama")
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


def measure_llamacpp(args):
    import llama_cpp
    quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(quiet, None)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(str(gguf_file(args)).encode(), llama_cpp.llama_model_default_params())
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

    prompt = torch.randint(3, 500, (args.prompt,)).tolist()
    prefill, steps = [], []
    for _ in range(3):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        prefill.append(seconds_of(lambda: decode(prompt)))
        steps.append(seconds_of(lambda: [decode([prompt[i % len(prompt)]]) for i in range(args.tokens - 1)]))
    return {"prefill_seconds": min(prefill), "decode_seconds": statistics.median(steps) / (args.tokens - 1)}


def main():
    parser = torch_peer.parser(__doc__, threads=1, prompt=256, tokens=64, batch=1)
    parser.add_argument("library", choices=("transformers", "llamacpp"))
    parser.add_argument("--model", required=True, help="the directory of Hugging Face; the GGUF file is written beside it")
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--precision", default="bf16")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.make:
        make_transformers(args) if args.library == "transformers" else make_llamacpp(args)
    else:
        torch_peer.output(**(measure_transformers(args) if args.library == "transformers" else measure_llamacpp(args)))


if __name__ == "__main__":
    main()
