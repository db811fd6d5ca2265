"""What people look at: tables and diagrams made from results, never from models."""
