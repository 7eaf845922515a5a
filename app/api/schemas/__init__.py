"""Request and response models of the OpenAPI document."""
