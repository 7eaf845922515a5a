"""What is known of models, as tables."""

import pytest

from app.core.llm_models import SHELL_TOOLS, ShellChoice, offers_shell, shell_variant, takes_freeform, takes_patches


def test_only_gpt_models_but_gpt_4_and_the_open_ones_edit_by_patches(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str | None, bool]] = [
        ("gpt-5", True),
        ("gpt-5.1-codex", True),
        ("openai/gpt-5.2", True),
        ("GPT-5-mini", True),
        ("gpt-6", True),
        ("gpt-3.5-turbo", True),
        ("gpt-4", False),
        ("gpt-4o", False),
        ("gpt-4.1-mini", False),
        ("openrouter/openai/gpt-4o", False),
        ("gpt-oss-120b", False),
        ("groq/openai/gpt-oss-20b", False),
        ("o3", False),
        ("codex-mini-latest", False),
        ("claude-sonnet-4-5", False),
        ("gemini-3-pro", False),
        ("", False),
        (None, False),
    ]
    for model, patches in cases:
        with subtests.test(model=model, patches=patches):
            assert takes_patches(model) is patches


def test_only_the_fifth_generation_and_the_coders_take_free_text(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str | None, bool]] = [
        ("gpt-5", True),
        ("GPT-5-mini", True),
        ("gpt-5.2", True),
        ("gpt-5.1-codex-max", True),
        ("openai/gpt-5", True),
        ("openrouter/openai/gpt-5-codex", True),
        ("codex-mini-latest", True),
        ("gpt-4.1", False),
        ("gpt-4o", False),
        ("gpt-3.5-turbo", False),
        ("gpt-oss-120b", False),
        ("codex/gpt-4o", False),
        ("o3", False),
        ("o4-mini", False),
        ("claude-sonnet-4-5", False),
        ("not-gpt-5", False),
        ("", False),
        (None, False),
    ]
    for model, freeform in cases:
        with subtests.test(model=model, freeform=freeform):
            assert takes_freeform(model) is freeform


def test_each_family_gets_the_shell_it_was_taught(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str | None, str]] = [
        ("gpt-5", "shell"),
        ("gpt-5-mini", "shell"),
        ("gpt-5-codex", "shell_command"),
        ("gpt-5.1", "shell_command"),
        ("gpt-5.1-codex-mini", "shell_command"),
        ("openai/gpt-5.2-codex", "shell_command"),
        ("gpt-4.1", "shell"),
        ("gpt-4o", "shell"),
        ("gpt-3.5-turbo", "shell"),
        ("openai/gpt-oss-120b", "shell"),
        ("gpt-6", "exec_command"),
        ("codex-mini-latest", "shell"),
        ("codex-1p", "shell_command"),
        ("exp-codex-personality", "shell_command"),
        ("exp-5.1", "exec_command"),
        ("o3", "shell"),
        ("o4-mini", "shell"),
        ("O1-Preview", "shell"),
        ("claude-sonnet-4-5", "shell_command"),
        ("anthropic/claude-opus", "shell_command"),
        ("gemini-3-pro", "shell_command"),
        ("", "shell_command"),
        (None, "shell_command"),
    ]
    for model, variant in cases:
        with subtests.test(model=model, variant=variant):
            assert shell_variant(model) == variant


def test_a_model_is_offered_one_form_of_the_shell(subtests: pytest.Subtests) -> None:
    cases: list[tuple[ShellChoice, str | None, list[str]]] = [
        ("auto", "gpt-5", ["shell"]),
        ("auto", "gpt-5.1", ["shell_command"]),
        ("auto", "gpt-6", ["exec_command", "write_stdin"]),
        ("auto", "claude-sonnet-4-5", ["shell_command"]),
        ("auto", None, ["shell_command"]),
        ("shell", "gpt-6", ["shell"]),
        ("shell_command", None, ["shell_command"]),
        ("unified_exec", "gpt-5", ["exec_command", "write_stdin"]),
        ("disabled", "gpt-5", []),
        ("disabled", None, []),
    ]
    for choice, model, offered in cases:
        with subtests.test(choice=choice, model=model, offered=offered):
            assert [tool for tool in SHELL_TOOLS if offers_shell(choice, model, tool)] == offered
