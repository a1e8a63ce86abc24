"""The A2A face: agent card, JSON-RPC and HTTP+JSON, on the SDK's dispatchers and over the keepers."""
