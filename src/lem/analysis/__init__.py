"""The paper's mathematics as tools: bounds and certificates, time scales, constructions, relations to other models."""
