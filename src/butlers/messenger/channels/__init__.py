"""The adapters: one file per provider. Only `messenger.execution` and the composition root may use them."""
