"""Traces, derived from the events of conversations, for OpenTelemetry."""
