"""Mixtures of experts: routers, routed experts, what stands beside them."""
