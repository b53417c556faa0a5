"""The bytes that each version has written, kept so that later versions can be held to reading them."""
