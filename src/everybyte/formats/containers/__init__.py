"""Files that start serving engines in containers and as services: compose files, Kubernetes manifests and values, llama-swap, systemd."""
