"""What the engine decides by: severities and escalation, attempts, costs, predictions, its settings."""
