"""Answers as servers give them, from the public PyTorch model: JSON with log-probabilities of a prompt and of tokens
that the model generates after it, in each of FORMS.

    python scripts/server_answers.py MODEL FORM OUT [--ids 1,2,3 | --case F] [--dtype bf16] [--new 16] [--top 20]
                                     [--without-plus-one] [--temperature T --seed S]
    python scripts/server_answers.py --candidates tests/candidates

The second form writes the answers in tests/candidates. Nothing of m3ref runs here. The shapes of the answers are those
of vLLM's OpenAI server, llama.cpp's server and SGLang's native API (REFERENCE.md 7.18 names the sources).
"""

import argparse
import json
import math
import os

import numpy as np

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
FORMS = ("vllm", "vllm_echo", "vllm_chat", "vllm_tokens", "llama_cpp", "llama_cpp_post", "llama_cpp_old", "sglang",
         "openai", "plain")


def log_softmax(logits):
    wide = np.asarray(logits, np.float32)
    most = wide.max(-1, keepdims=True)
    return wide - most - np.log(np.exp(wide - most).sum(-1, keepdims=True, dtype=np.float32))


class Answer:
    """ids: the prompt and what was generated; logprobs [len(ids), V]: row t predicts token t + 1."""

    def __init__(self, ids, prompt, logits, top=20):
        self.ids, self.prompt, self.top = [int(i) for i in ids], prompt, top
        self.logprobs = log_softmax(logits)

    def best(self, place):
        row = self.logprobs[place - 1]
        return [(int(i), float(row[i])) for i in np.argsort(-row, kind="stable")[:self.top]]

    def own(self, place):
        return float(self.logprobs[place - 1][self.ids[place]])

    @property
    def new(self):
        return range(self.prompt, len(self.ids))

    def vllm_prompt(self):
        """The token itself first, then the most likely ones."""
        places = [None]
        for place in range(1, self.prompt):
            row = self.logprobs[place - 1]
            entry = {str(self.ids[place]): {"logprob": self.own(place),
                                            "rank": int((row > row[self.ids[place]]).sum()) + 1, "decoded_token": "x"}}
            for rank, (i, logprob) in enumerate(self.best(place)):
                entry[str(i)] = {"logprob": logprob, "rank": rank + 1, "decoded_token": "x"}
            places.append(entry)
        return places

    def completion(self, places, name):
        tops = [{name(i): logprob for i, logprob in [*self.best(p), (self.ids[p], self.own(p))]} if p else None
                for p in places]
        return {"text_offset": [0] * len(places), "tokens": [name(self.ids[p]) for p in places],
                "token_logprobs": [self.own(p) if p else None for p in places], "top_logprobs": tops}

    def openai(self, extra, usage=True):
        body = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m3",
                "choices": [{"index": 0, "text": "x", "finish_reason": "length", "stop_reason": None, **extra}]}
        if usage:
            body["usage"] = {"prompt_tokens": self.prompt, "completion_tokens": len(self.new),
                             "total_tokens": len(self.ids)}
        return body

    def llama_cpp(self, value, own, listed):
        items = [{"id": self.ids[p], "token": "x", "bytes": [120], own: value(self.own(p)),
                  listed: [{"id": i, "token": "x", "bytes": [120], own: value(x)} for i, x in self.best(p)]}
                 for p in self.new]
        return {"index": 0, "content": "x", "tokens": self.ids[self.prompt:], "stop": True, "model": "m3",
                "tokens_predicted": len(items), "tokens_evaluated": self.prompt, "prompt": "x", "truncated": False,
                "completion_probabilities": items}

    def sglang(self):
        def pairs(places):
            return [[self.own(p) if p else None, self.ids[p], None] for p in places]

        def lists(places):
            return [[[x, i, None] for i, x in self.best(p)] if p else None for p in places]
        before = range(self.prompt)
        return {"text": "x", "output_ids": self.ids[self.prompt:],
                "meta_info": {"id": "1", "finish_reason": {"type": "length", "length": len(self.new)},
                              "prompt_tokens": self.prompt, "completion_tokens": len(self.new),
                              "input_token_logprobs": pairs(before), "output_token_logprobs": pairs(self.new),
                              "input_top_logprobs": lists(before), "output_top_logprobs": lists(self.new)}}

    def to(self, form):
        token_id = "token_id:{}".format
        if form == "vllm":
            return self.openai({"logprobs": None, "prompt_logprobs": self.vllm_prompt(),
                                "prompt_token_ids": self.ids[:self.prompt], "token_ids": self.ids[self.prompt:]})
        if form == "vllm_tokens":
            return self.openai({"logprobs": self.completion(self.new, token_id), "prompt_logprobs": None})
        if form == "vllm_echo":
            return self.openai({"logprobs": self.completion(range(len(self.ids)), token_id)})
        if form == "openai":
            return self.openai({"logprobs": self.completion(self.new, " w{}".format)})
        if form == "vllm_chat":
            content = [{"token": token_id(self.ids[p]), "logprob": self.own(p), "bytes": None,
                        "top_logprobs": [{"token": token_id(i), "logprob": x, "bytes": None} for i, x in self.best(p)]}
                       for p in self.new]
            body = self.openai({"message": {"role": "assistant", "content": "x"}, "logprobs": {"content": content}})
            return body | {"object": "chat.completion", "prompt_logprobs": self.vllm_prompt()}
        if form == "llama_cpp":
            return self.llama_cpp(float, "logprob", "top_logprobs")
        if form == "llama_cpp_post":
            return self.llama_cpp(math.exp, "prob", "top_probs")
        if form == "llama_cpp_old":
            body = self.llama_cpp(float, "logprob", "top_logprobs")
            del body["tokens"]
            body["completion_probabilities"] = [
                {"content": "x", "probs": [{"tok_str": "x", "prob": math.exp(x)} for _, x in self.best(p)]}
                for p in self.new]
            return body
        if form == "sglang":
            return self.sglang()
        return {"prompt_ids": self.ids[:self.prompt], "ids": self.ids[self.prompt:]}


def load(folder, dtype, without_plus_one):
    import torch
    import dump_transformers
    model = dump_transformers.truth.load(folder, torch.float32, "eager", "eager")
    if dtype in dump_transformers.HALVES:
        dump_transformers.store_halves(model, dump_transformers.HALVES[dtype], ())
    if without_plus_one:
        dump_transformers.drop_plus_one(model)
    return model


def generate(model, ids, new, temperature, seed):
    """All ids, and the logits of all places."""
    import torch
    ids, draw = [int(i) for i in ids], np.random.default_rng(seed)
    for step in range(new + 1):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float().numpy()
        if step == new:
            return ids, logits
        row = logits[-1].astype(np.float64)
        if temperature == 0:
            ids.append(int(row.argmax()))
        else:
            p = np.exp((row - row.max()) / temperature)
            ids.append(int(draw.choice(len(p), p=p / p.sum())))


def write(path, body):
    with open(path, "w") as file:
        json.dump(body, file)
        file.write("\n")


def candidates(folder):
    """One answer in each form from bf16 runs of golden/tiny, and two that are wrong."""
    from safetensors.numpy import load_file
    tiny = os.path.join(ROOT, "golden", "tiny")
    prompt = load_file(os.path.join(tiny, "case.safetensors"))["input_ids"][:40]
    model = load(os.path.join(tiny, "model"), "bf16", False)
    ids, logits = generate(model, prompt, 20, 0, 0)
    answer = Answer(ids, len(prompt), logits)
    for form in FORMS:
        write(os.path.join(folder, f"answer_{form}.json"), answer.to(form))
    ids, _ = generate(model, prompt, 60, 1.0, 1)
    write(os.path.join(folder, "answer_sampled.json"), {"prompt_ids": ids[:40], "ids": ids[40:]})
    ids, logits = generate(load(os.path.join(tiny, "model"), "bf16", True), prompt, 20, 0, 0)
    answer = Answer(ids, len(prompt), logits)
    for form in ("vllm", "plain"):
        write(os.path.join(folder, f"answer_{form}_without_plus_one.json"), answer.to(form))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("form", nargs="?", choices=FORMS)
    parser.add_argument("out", nargs="?")
    parser.add_argument("--candidates")
    parser.add_argument("--ids", type=lambda text: [int(i) for i in text.split(",")])
    parser.add_argument("--case")
    parser.add_argument("--dtype", default="bf16", choices=("f32", "bf16", "f16"))
    parser.add_argument("--new", type=int, default=16)
    parser.add_argument("--top", type=int, default=20)
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without-plus-one", action="store_true")
    words = parser.parse_args()
    import torch
    torch.set_num_threads(1)
    if words.candidates:
        candidates(words.candidates)
        return
    ids = words.ids
    if words.case:
        from safetensors.numpy import load_file
        ids = load_file(words.case)["input_ids"]
    model = load(words.model, words.dtype, words.without_plus_one)
    all_ids, logits = generate(model, ids, words.new, words.temperature, words.seed)
    write(words.out, Answer(all_ids, len(ids), logits, words.top).to(words.form))


if __name__ == "__main__":
    main()
