#!/usr/bin/env bash
# transformers 5.24.0: with pad_token = eos_token a language model never learns to end.
#
# DataCollatorForLanguageModeling(mlm=False) makes labels by copying the tokens, and sets those to -100 that are the padding
# token, wherever they are. GPT-2, Llama and others have no padding token, and scripts set tokenizer.pad_token =
# tokenizer.eos_token, as the error that asks for one proposes. Then the end of each text is no label either, although its
# attention mask is 1 and it is no padding: the loss never sees it, and a model that is tuned on texts with an end generates up to
# max_new_tokens. Nothing is warned. What helps: a padding token of its own. TRL's DataCollatorForLanguageModeling pads labels by
# themselves and keeps the end. Seen on 2026-11-30 with Python 3.11 and torch 2.13.0, on a CPU, with a tokenizer of five words.
#
# Needs: python3.11 with venv, some 5 GB for torch. Fails if transformers behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
packages="transformers==5.24.0 torch==2.13.0 numpy==2.4.6"
if command -v uv >/dev/null; then
  # shellcheck disable=SC2086
  uv pip install --quiet --python "$folder/venv/bin/python" $packages
else
  # shellcheck disable=SC2086
  "$folder/venv/bin/pip" install --quiet $packages
fi
cat >"$folder/labels.py" <<'PY'
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

words = Tokenizer(models.WordLevel({"<end>": 0, "<pad>": 1, "<unk>": 2, "red": 3, "blue": 4}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()


def labels(pad_token):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", unk_token="<unk>")
    tokenizer.pad_token = pad_token(tokenizer)
    texts = [tokenizer("red blue red"), tokenizer("blue")]
    for text in texts:  # as scripts end their texts
        text["input_ids"].append(tokenizer.eos_token_id)
        text["attention_mask"].append(1)
    batch = DataCollatorForLanguageModeling(tokenizer, mlm=False)(
        [{key: text[key] for key in ("input_ids", "attention_mask")} for text in texts]
    )
    for key in ("input_ids", "attention_mask", "labels"):
        print(f"{tokenizer.pad_token}: {key} {batch[key].tolist()}")
    return batch["labels"].tolist()


print(transformers.__version__)
assert labels(lambda tokenizer: "<pad>") == [[3, 4, 3, 0], [4, 0, -100, -100]]
assert labels(lambda tokenizer: tokenizer.eos_token) == [[3, 4, 3, -100], [4, -100, -100, -100]]
assert transformers.__version__ == "5.24.0"
PY
"$folder/venv/bin/python" "$folder/labels.py"
echo "as described"
