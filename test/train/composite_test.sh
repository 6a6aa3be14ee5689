#!/usr/bin/env bash
# timeout: 200
# A decoder inside a larger model (Gemma3ForConditionalGeneration): its training has the bits of that of the decoder
# alone, and the tensors of the vision tower reach every export unchanged.
source test/support/check.sh
cat >"$work/config.json" <<'JSON'
{"architectures": ["Gemma3ForCausalLM"], "vocab_size": 1024, "hidden_size": 40, "intermediate_size": 48,
 "num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 9,
 "query_pre_attn_scalar": 8, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
 "max_position_embeddings": 64, "eos_token_id": 0}
JSON
cat >"$work/directories.py" <<'PYTHON'
"""enclose DECODER OUT: a directory in which the decoder is a part. carried A B: whether both have the same tower."""
import json, os, shutil, struct, sys

TOWER = {"vision_tower.embeddings.position_embedding.weight": [3, 5],
         "vision_tower.encoder.layers.0.self_attn.q_proj.weight": [4, 4],
         "multi_modal_projector.mm_input_projection_weight": [4, 40]}

def read(folder):
    data = open(f"{folder}/model.safetensors", "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {name: (entry["shape"], data[8 + n + entry["data_offsets"][0]:8 + n + entry["data_offsets"][1]])
            for name, entry in header.items()}

def enclose(decoder, out):
    shutil.copytree(decoder, out)
    tensors = {"language_model." + name: value for name, value in read(decoder).items()}
    for shift, (name, shape) in enumerate(TOWER.items()):
        n = shape[0] * shape[1]
        tensors[name] = (shape, struct.pack(f"<{n}f", *(shift + i / 7 for i in range(n))))
    header, data = {}, b""
    for name, (shape, values) in sorted(tensors.items()):
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    open(f"{out}/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
    config = json.load(open(f"{decoder}/config.json"))
    del config["architectures"]
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": config,
             "vision_config": {"hidden_size": 4}, "mm_tokens_per_image": 4, "eos_token_id": config.pop("eos_token_id")}
    json.dump(whole, open(f"{out}/config.json", "w"))

def carried(a, b):
    a, b = read(a), read(b)
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    assert all(a[name] == b[name] for name in TOWER)

{"enclose": enclose, "carried": carried}[sys.argv[1]](*sys.argv[2:])
PYTHON
keys=(model.family=llama data.train=data/samples/shakespeare_train.h5 data.validation=data/samples/shakespeare_test.h5
  data.sequence_length=32 train.global_batch=8 train.epochs=1 train.max_steps=2 optimizer.kind=adamw
  schedule.warmup_epochs=0 evaluation.max_samples=24 log.progress=false log.tensorboard=false run.directory="$work"
  cpu.threads=1 comm.watchdog_seconds=120 reproducible=true train.micro_batches=4)
train() { # RANKS NAME KEY=VALUE...
  "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n "$1" "$lockstep" train "${keys[@]}" run.name="$2" "${@:3}"
}
directories() { python3 "$work/directories.py" "$@"; }
same() { "$lockstep" checkpoint diff "$work/$1/checkpoints/latest" "$work/$2/checkpoints/latest"; }
has() { grep -q -- "$2" "$1"; }
not() { ! "$@"; }
whole=$work/whole

check "trains a decoder" train 1 base model.config="$work/config.json"
check "  which becomes a part of a model" directories enclose "$work/base/model" "$whole"
check "the files are complete" "$lockstep" checkpoint verify "$whole"
check "trains the decoder alone" train 1 alone model.from="$work/base/model"
check "trains it inside the model" train 1 inside model.from="$whole"
check "  with the same bits" same alone inside
check "  and with them on 2 ranks" train 2 two model.from="$whole"
check "  really" same inside two
check "  and on 4" train 4 four model.from="$whole"
check "  really" same inside four
check "  the tower is unchanged" directories carried "$whole" "$work/inside/model"
check "  the configuration is that of the model" has "$work/inside/model/config.json" '"Gemma3ForConditionalGeneration"'
check "  evaluates what it wrote" "$lockstep" evaluate "$work/inside/model" data.validation=data/samples/shakespeare_test.h5 \
  data.sequence_length=32 evaluation.max_samples=24
check "  exports a checkpoint" "$lockstep" checkpoint export "$work/inside/checkpoints/latest" "$work/exported"
check "  with the tower" directories carried "$whole" "$work/exported"
check "imports the model" "$lockstep" checkpoint import "$whole" "$work/whole.h5"
check "  exports it again" "$lockstep" checkpoint export "$work/whole.h5" "$work/again"
check "  with the tower" directories carried "$whole" "$work/again"
check "  as one file" "$lockstep" checkpoint export "$work/whole.h5" "$work/whole.safetensors"
check "  which is imported" "$lockstep" checkpoint import "$work/whole.safetensors" "$work/file.h5"
check "  and exported" "$lockstep" checkpoint export "$work/file.h5" "$work/from-file"
check "  with the tower" directories carried "$whole" "$work/from-file"
check "trains from the checkpoint" train 1 from-checkpoint model.config="$whole/config.json" \
  model.initialize_from="$work/whole.h5"
check "  with the same bits" same inside from-checkpoint
check "  and the tower" directories carried "$whole" "$work/from-checkpoint/model"

check "trains adapters" train 1 adapters model.from="$whole" model.lora.rank=2 'model.lora.targets=[q, v]'
check "  whose names are those of the decoder in the model" has "$work/adapters/model/adapter_model.safetensors" \
  'base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight'
check "  and whose targets are not in the tower" has "$work/adapters/model/adapter_config.json" 'model\\\\.language_model\\\\..*(q_proj|v_proj)'
check "  evaluates them" "$lockstep" evaluate "$work/adapters/model" data.validation=data/samples/shakespeare_test.h5 \
  data.sequence_length=32 evaluation.max_samples=24
check "  imports them" "$lockstep" checkpoint import "$work/adapters/model" "$work/adapters.h5"
check "  merges them" "$lockstep" checkpoint merge "$whole" "$work/adapters/model" "$work/merged"
check "  with the tower" directories carried "$whole" "$work/merged"

check "  with the tower, in one file" "$lockstep" checkpoint merge "$whole" "$work/adapters/model" "$work/merged.h5"
check "  which is exported" "$lockstep" checkpoint export "$work/merged.h5" "$work/from-merged"
check "  with the tower" directories carried "$whole" "$work/from-merged"
check "a model and its import are equal" "$lockstep" checkpoint diff "$whole" "$work/whole.h5"
check "  and others are not" refused 1 'vision_tower|language_model|model.layers' "$lockstep" checkpoint diff "$whole" "$work/merged"
check "a run continues one by its checkpoint" train 1 chain model.config="$whole/config.json" \
  model.initialize_from="$work/inside/checkpoints/latest"
check "  with the tower of its model" directories carried "$whole" "$work/chain/model"

mv "$whole" "$work/moved"
check "without the model, a run is completed again" train 1 inside model.from="$whole"
check "  and keeps its tower" directories carried "$work/moved" "$work/inside/model"
check "  which its checkpoints get, too" "$lockstep" checkpoint export "$work/inside/checkpoints/latest" "$work/kept"
check "  really" directories carried "$work/moved" "$work/kept"
rm -r "$work/inside/model"
check "without that, the decoder is exported" "$lockstep" checkpoint export "$work/inside/checkpoints/latest" "$work/decoder"
check "  alone" has "$work/decoder/config.json" '"Gemma3ForCausalLM"'
check "  without a tower" not has "$work/decoder/model.safetensors" vision_tower
check "unless the model is named" "$lockstep" checkpoint export "$work/inside/checkpoints/latest" "$work/named" --base "$work/moved"
check "  again with the tower" directories carried "$work/moved" "$work/named"
refuses() { sed "$2" "$work/moved/config.json" >"$work/other.json"; refused 2 "$1" "$lockstep" plan "${keys[@]}" model.config="$work/other.json"; }
check "another model is refused" refuses 'architectures: a decoder in text_config is supported in Gemma3ForConditionalGeneration only' \
  's/Gemma3ForConditionalGeneration/Mistral3ForConditionalGeneration/'
check "a key that is not known is refused" refuses 'the key "frames"' 's/"mm_tokens/"frames": 1, "mm_tokens/'
check "a missing text_config is named" refuses 'text_config is missing' 's/"text_config"/"_text_config"/'
check "a text_config that is none is refused" refuses 'text_config: expected a JSON object' 's/"text_config": {.*}, "vision/"text_config": 3, "vision/'
finish
