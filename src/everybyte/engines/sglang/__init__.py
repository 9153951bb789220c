"""SGLang: what a server holds."""
