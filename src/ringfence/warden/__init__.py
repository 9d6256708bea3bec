"""The host half of the warden: framing, the connection, and a sandbox over it."""
