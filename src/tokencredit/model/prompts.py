"""From a problem to prompt token ids; the only place where text becomes a prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokencredit.study.config import Prompt
from tokencredit.study.errors import UserError
from tokencredit.study.tables import read_json


def load_tokenizer(folder: Path | str) -> Any:
    """The tokenizer of a from_pretrained folder.

    A folder that names the general class is read by it directly: AutoTokenizer imports torch and every model's
    registration first, two seconds that each of many evaluation jobs would pay.
    """
    config = Path(folder) / "tokenizer_config.json"
    named = read_json(config).get("tokenizer_class") if config.exists() else None
    if named in ("TokenizersBackend", "PreTrainedTokenizerFast") and (Path(folder) / "tokenizer.json").exists():
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def render(prompt: Prompt, problem: str, choices: Sequence[str] = ()) -> str:
    """The user's text: the template with the problem in its place, options lettered below it."""
    if choices:
        problem += "\n" + "\n".join(f"({chr(65 + i)}) {choice}" for i, choice in enumerate(choices))
    return prompt.template.replace("{problem}", problem)


class Prompter:
    """Renders problems to token ids with one tokenizer and one template."""

    def __init__(self, tokenizer: Any, prompt: Prompt, limit: int | None = None):
        if prompt.chat and not tokenizer.chat_template:
            raise UserError(
                "prompt.chat is true, but the model's tokenizer has no chat template; set prompt.chat: false"
            )
        self.tokenizer, self.prompt, self.limit = tokenizer, prompt, limit
        self._texts: dict[int, str] = {}  # token -> its text where it stands alone

    def ids(self, problem: str, choices: Sequence[str] = ()) -> tuple[int, ...]:
        """Prompt token ids; UserError where they pass the limit (training.max_prompt_tokens)."""
        text = render(self.prompt, problem, choices)
        if self.prompt.chat:
            message = [{"role": "user", "content": text}]
            text = self.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        ids = tuple(self.tokenizer.encode(text, add_special_tokens=not self.prompt.chat))
        if self.limit is not None and len(ids) > self.limit:
            raise UserError(
                f"a prompt has {len(ids)} tokens, the limit is {self.limit} (training.max_prompt_tokens): "
                f"{problem[:80]!r}..."
            )
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Response text without special tokens; for grading and reading only, never fed back to a model."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token, such that their concatenation is `decode(tokens)`. Linear in their number.

        A special token has none; a token that does not finish a character (byte-level vocabularies) has none, and the
        token that finishes it has the character.
        """
        text = self.decode(tokens)
        alone = [self._alone(token) for token in tokens]
        return alone if "".join(alone) == text else self._in_context(tokens, text)

    def _alone(self, token: int) -> str:
        if token not in self._texts:
            self._texts[token] = self.decode([token])
        return self._texts[token]

    def _in_context(self, tokens: Sequence[int], text: str) -> list[str]:
        """Pieces where a token's text depends on its neighbours.

        A token has told as much of the text as a decoded window that ends with it agrees with: half a character does
        not agree. Where the window agrees to its end, the next one begins with the last tokens whose own text stands
        there, so that windows stay short.
        """
        out: list[str] = []
        start = origin = told = 0  # first token of the window, where its text begins, characters told so far
        fresh = 0  # first token after the last window that was given up
        for i in range(len(tokens)):
            window = self.decode(tokens[start : i + 1])
            agreed = origin + _shared(window, text[origin : origin + len(window)])
            out.append(text[told:agreed])
            if agreed > told and agreed == origin + len(window):
                for first in (i, fresh):
                    tail = self._alone(tokens[i]) if first == i else self.decode(tokens[first : i + 1])
                    if tail and text.endswith(tail, origin, agreed):
                        start, origin, fresh = first, agreed - len(tail), i + 1
                        break
            told = max(told, agreed)
        if out:
            out[-1] += text[told:]
        return out


def _shared(a: str, b: str) -> int:
    """Length of the longest common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def prompt_hash(ids: Sequence[int]) -> str:
    """16 hex digits naming a prompt's token ids."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]
