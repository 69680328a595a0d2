"""A tokenizer for golden/tiny, whose vocabulary has 211 ids, and a chat template: tokenizer.json, chat_template.jinja.

Byte-level BPE, as in the released model, but only over printable ASCII and the line feed, because 256 bytes do not fit.
Other bytes become <unk>. The weights are random, so what the model says with it makes no sense.

    python scripts/golden/tokenizer.py FOLDER        needs the library tokenizers
"""

import json
import os
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 211
WORDS = 200
# In the order of their ids, from WORDS on. The first two are those of the config: image 200, video 201.
SPECIAL = ("<image>", "<video>", "<unk>", "<pad>", "<start>", "<end>", "<system>", "<user>", "<assistant>", "<tool>",
           "<think>")
TEXT = """The model reads a list of tokens and says which token comes next. A token is a piece of a word, or a mark.
Each layer adds something to what it has read: attention looks back at the tokens before, and the experts think about
one token at a time. The router chooses the experts, and the index chooses the blocks of keys that a token looks at.
The weather is fine today, and the sea is calm. There was a time when the house by the river was full of people.
What is the reason for this number? It is the sum of all the others, and the error is no larger than rounding allows.
She said that the water in the glass was cold. He asked where the road goes, and they told him: to the mountains.
In the morning the light comes through the window; in the evening the shadows are long. Hello, world! How are you?
"""
TEMPLATE = """{%- if not messages %}{{ raise_exception('a chat needs a message') }}{% endif %}
{%- for message in messages %}
{%- if message.role not in ('system', 'user', 'assistant', 'tool') %}
{{- raise_exception('a message has the unknown role ' ~ message.role) }}
{%- endif %}
{{- '<start><' ~ message.role ~ '>' ~ message.content ~ '<end>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start><assistant>' }}{% endif %}
"""


def byte_level(model):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def learn():
    """(vocabulary, merges) of BPE over the text. Blank and line feed are the characters that stand for these bytes."""
    alphabet = [chr(byte) for byte in range(33, 127)] + ["\u0120", "\u010a"]
    tokenizer = byte_level(models.BPE())
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=WORDS, initial_alphabet=alphabet,
                                                              show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    if len(model["vocab"]) != WORDS:
        raise ValueError(f"the text gives {len(model['vocab'])} tokens, expected {WORDS}")
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def produce(folder):
    """Special tokens are in the vocabulary too: the library renumbers those that are in added_tokens alone."""
    vocabulary, merges = learn()
    vocabulary |= {piece: WORDS + i for i, piece in enumerate(SPECIAL)}
    tokenizer = byte_level(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in SPECIAL])
    if tokenizer.get_vocab_size() != VOCABULARY or any(tokenizer.token_to_id(piece) != i
                                                       for piece, i in vocabulary.items()):
        raise ValueError("the library has renumbered the tokens")
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        file.write(tokenizer.to_str(pretty=True) + "\n")
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as file:
        file.write(TEMPLATE)


if __name__ == "__main__":
    produce(sys.argv[1])
