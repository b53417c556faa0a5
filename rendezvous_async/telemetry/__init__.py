"""What a node tells monitoring: metrics for Prometheus, spans for OpenTelemetry. Both only listen to its events."""
