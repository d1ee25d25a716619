"""Other libraries: eigenclock inside models written for them, one module or package each, imported when it is asked for."""

INTEGRATIONS: dict[str, str] = {
    "huggingface": "eigenclock.integrations.huggingface",
    "nanogpt": "eigenclock.integrations.nanogpt",
    "nanochat": "eigenclock.integrations.nanochat",
}
"""Where each one lives; all of them have ``install(model, encoding)``."""
