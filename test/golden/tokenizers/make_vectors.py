#!/usr/bin/env python3
"""Makes the vectors of this folder with Hugging Face's library `tokenizers` (0.23.3).

    make_vectors.py FOLDER

FOLDER contains gpt2, qwen2 and smollm, each with tokenizer.json, and llama-story with tokenizer.json (README.md lists
their sources). Writes NAME.json and NAME.merges.gz of the first three, llama-story.json.gz, texts.json.gz with texts
and their ids, and variants.json.gz: small tokenizers with the options that the large ones do not use.
"""
import copy
import gzip
import json
import pathlib
import random
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
BYTE_LEVEL = ("gpt2", "qwen2", "smollm")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
            r"\s*[\r\n]+|\s+(?!\S)|\s+"]

# What texts are made of: spaces and marks of all kinds, contractions, digits, added tokens, scripts, composition.
PIECES = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>", "<s>", "</s>", "<mask>", "<|start_story|>",
          "<|end_story|>", "<0x41>", "\u2581", "\u2581<|end_story|>", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u180e",
          "\x85", "\u200b", "\x0b", "'s", "'S", "'ll", "'LL", "'\u017f", "'re", "12", "3", "1234567", "\u00bd", "\u2167", "\u0667",
          "\u0301", "\u0300\u0316", "\u00e9", "e\u0301", "\u0344", "\u0958", "\u1112\u1161\u11ab", "\ud55c\uad6d", "\u4e2d\u6587", "\u65e5\u672c\u8a9e", "\u0928\u092e\u0938\u094d\u0924\u0947",
          "\u0645\u0631\u062d\u0628\u0627", "\u041f\u0440\u0438\u0432\u0435\u0442", "\u03a9", "\u1e9e", "\ufb01", "...", "!!", "_", "-", "#include <x>", " a", "the", " the", "Hello",
          " World", "McDonald's", "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001d504", "\x00", "ZZ", "qu"]
PROSE = ("From fairest creatures we desire increase, that thereby beauty's rose might never die, but as the riper should by "
         "time decease, his tender heir might bear his memory. In 1609, all 154 of them were printed; nobody knows by whom. ")


def some_texts(rng, n):
    texts = ["", " ", "\n", PROSE, PROSE.upper(), "a" * 200, "ab" * 100, " " * 50 + "x", "\u0301" * 40]
    while len(texts) < n:
        texts.append("".join(rng.choice(PIECES) if rng.random() < 0.7 else PROSE[(i := rng.randrange(len(PROSE))):i + 9]
                             for _ in range(rng.randrange(1, 12))))
    return texts


def results(tokenizer, texts):
    ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    return {"ids": ids, "decoded": tokenizer.decode_batch(ids, skip_special_tokens=False)}


# ---- The large tokenizers --------------------------------------------------------------------------------------------

def write(path, content):
    path.write_bytes(gzip.compress(content.encode(), mtime=0) if path.suffix == ".gz" else content.encode())


def store(folder, name):
    """The vocabulary is that of `head`, then the results of the merges in order, so storing the merges is enough."""
    file = json.loads((folder / name / "tokenizer.json").read_text())
    model = file["model"]
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    n_head = tokens.index("".join(merges[0]))
    results_of_merges = ["".join(merge) for merge in merges]
    assert tokens[n_head:n_head + len(merges)] == results_of_merges
    model["head"], model["tail"] = tokens[:n_head], tokens[n_head + len(merges):]
    del model["vocab"], model["merges"]
    write(HERE / f"{name}.json", json.dumps(file, indent=1) + "\n")
    write(HERE / f"{name}.merges.gz", "".join(" ".join(merge) + "\n" for merge in merges))


# ---- Small tokenizers ------------------------------------------------------------------------------------------------

def train(pre_tokenizer, size, alphabet, text=PROSE):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False))
    return json.loads(tokenizer.to_str())


def byte_level(use_regex=True, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


def split(pattern, kind="Regex", behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(kind, parts):
    return {"type": "Sequence", kind: parts}


def added(file, content, **options):
    vocab = file["model"]["vocab"]
    tokens = file["added_tokens"]
    n_new = sum(1 for token in tokens if token["content"] not in vocab)
    token = {"id": vocab.get(content, len(vocab) + n_new), "content": content, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": True}
    token.update(options)
    tokens.append(token)


def template(file, before, after):
    vocab = file["model"]["vocab"]
    ids = {token["content"]: token["id"] for token in file["added_tokens"]} | vocab
    piece = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}
    single = [piece(name) for name in before] + [{"Sequence": {"id": "A", "type_id": 0}}] + [piece(name) for name in after]
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in [*before, *after]}}


def byte_level_variants():
    base = train(pre_tokenizers.ByteLevel(add_prefix_space=False), 400, pre_tokenizers.ByteLevel.alphabet(),
                 PROSE + " ".join(PIECES))
    base["decoder"] = byte_level()
    make = lambda: copy.deepcopy(base)

    file = make()
    added(file, "<s>")
    added(file, "<|endoftext|>")
    file["pre_tokenizer"] = sequence("pretokenizers", [split(LLAMA3), byte_level(False)])
    file["post_processor"] = sequence("processors", [byte_level(), template(file, ["<s>"], [])])
    file["model"]["ignore_merges"] = True
    # A token that no merge produces: found only with ignore_merges.
    file["model"]["vocab"]["Hello"] = len(file["model"]["vocab"])
    for token in file["added_tokens"]:
        token["id"] += 1
    file["post_processor"]["processors"][1]["special_tokens"]["<s>"]["ids"] = [file["added_tokens"][0]["id"]]
    yield "llama3", file
    file = make()
    file["pre_tokenizer"] = sequence("pretokenizers", [{"type": "Digits", "individual_digits": False}, byte_level(prefix=True)])
    yield "prefix space, digits together", file
    file = make()
    file["pre_tokenizer"] = byte_level(False, True)
    yield "prefix space without pattern", file
    file = make()
    file["pre_tokenizer"] = sequence("pretokenizers", [split(" ", "String", "Removed"), byte_level(False)])
    yield "blanks removed", file
    file = make()
    file["pre_tokenizer"] = sequence("pretokenizers", [split(r"\p{L}+|\s", behavior="Removed", invert=True), byte_level()])
    yield "everything else removed", file
    for invert in (False, True):  # a match may also begin a text or follow another one
        file = make()
        pattern = split(r"\s", behavior="MergedWithPrevious", invert=invert)
        file["pre_tokenizer"] = sequence("pretokenizers", [pattern, byte_level(False)])
        yield f"{'everything else' if invert else 'white space'} merged with previous", file
    file = make()
    file["pre_tokenizer"] = sequence("pretokenizers", [split(O200K), byte_level(False)])
    yield "o200k", file
    file = make()
    file["pre_tokenizer"] = sequence("pretokenizers", [*[split(pattern) for pattern in DEEPSEEK], byte_level(False)])
    yield "deepseek", file
    file = make()
    file["normalizer"] = sequence("normalizers", [{"type": "NFC"}, {"type": "Replace", "pattern": {"String": "th"}, "content": "Th"}])
    added(file, "the", single_word=True, normalized=True, special=False)
    added(file, "e\u0301", normalized=True, special=False)
    added(file, "<mask>", lstrip=True)
    added(file, "<s>", rstrip=True)
    added(file, "</s>", lstrip=True, rstrip=True)
    added(file, "12", single_word=True)
    added(file, "  ", normalized=True, special=False)
    added(file, "<|end")
    added(file, "<|endoftext|>")
    yield "added tokens", file
    for fuse in (False, True):
        file = make()
        for token in ("\u00c3", "Z"):  # a byte of an e with an acute accent, and a letter
            del file["model"]["vocab"][token]
        tokens = sorted(file["model"]["vocab"], key=file["model"]["vocab"].get)
        file["model"]["merges"] = [m for m in file["model"]["merges"] if "\u00c3" not in "".join(m) and "Z" not in "".join(m)]
        keep = {"".join(m) for m in file["model"]["merges"]}
        tokens = [t for t in tokens if len(t) == 1 or t in keep] + ["<unk>"]
        file["model"]["vocab"] = {token: i for i, token in enumerate(tokens)}
        file["model"].update(unk_token="<unk>" if fuse else None, fuse_unk=fuse)
        yield f"bytes missing, {'unknown token' if fuse else 'left out'}", file


def code_point_variants():
    sentence = "\u2581" + PROSE.replace(" ", "\u2581")
    base = train(pre_tokenizers.Split("\n", "isolated"), 150, [], sentence)
    base["pre_tokenizer"] = None
    base["normalizer"] = sequence("normalizers", [{"type": "Prepend", "prepend": "\u2581"},
                                                  {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}])
    base["decoder"] = sequence("decoders", [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                                            {"type": "ByteFallback"}, {"type": "Fuse"},
                                            {"type": "Strip", "content": " ", "start": 1, "stop": 0}])

    def make(bytes_of=range(256), merged=None):
        file = copy.deepcopy(base)
        model = file["model"]
        head = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in bytes_of]
        tokens = sorted(model["vocab"], key=model["vocab"].get) + (merged or [])
        model["vocab"] = {token: i for i, token in enumerate(head + tokens)}
        model.update(unk_token="<unk>", fuse_unk=True, byte_fallback=bool(len(bytes_of)))
        for token in ("<unk>", "<s>", "</s>"):
            added(file, token, normalized=token == "</s>")
        return file

    file = make()
    file["post_processor"] = template(file, ["<s>"], ["</s>"])
    yield "byte fallback", file
    file = make(range(0, 0xc0))
    yield "some bytes, unknown tokens fused", file
    for fuse in (False, True):
        file = make([])
        file["model"]["fuse_unk"] = fuse
        yield f"no bytes, unknown tokens {'fused' if fuse else 'apart'}", file
    file = make([])
    file["model"]["unk_token"] = None
    yield "no bytes, no unknown token", file
    file = make()
    file["decoder"]["decoders"][3] = {"type": "Strip", "content": " ", "start": 0, "stop": 0}
    file["model"]["ignore_merges"] = True
    file["model"]["vocab"]["\u2581ZZ"] = len(file["model"]["vocab"])
    yield "whole words first, nothing stripped", file
    # Merges that produce a byte token.
    parts = ["<", "0", "x", "4", "1", ">", "<0", "<0x", "<0x4", "<0x41"]
    known = set(base["model"]["vocab"])
    file = make(merged=[part for part in parts if part not in known])
    file["model"]["merges"] += [["<", "0"], ["<0", "x"], ["<0x", "4"], ["<0x4", "1"], ["<0x41", ">"]]
    yield "a byte token as a merge", file


def main():
    folder = pathlib.Path(sys.argv[1])
    rng = random.Random(18)
    texts = some_texts(rng, 300)
    out = {"texts": texts}
    for name in (*BYTE_LEVEL, "llama-story"):
        out[name] = results(Tokenizer.from_file(str(folder / name / "tokenizer.json")), texts)
    for name in BYTE_LEVEL:
        store(folder, name)
    write(HERE / "llama-story.json.gz", (folder / "llama-story" / "tokenizer.json").read_text())
    write(HERE / "texts.json.gz", json.dumps(out) + "\n")

    variants = []
    texts = some_texts(rng, 60)
    for name, file in [*byte_level_variants(), *code_point_variants()]:
        tokenizer = Tokenizer.from_str(json.dumps(file))
        variants.append({"name": name, "tokenizer": file, "texts": texts, **results(tokenizer, texts)})
    write(HERE / "variants.json.gz", json.dumps(variants) + "\n")


if __name__ == "__main__":
    main()
