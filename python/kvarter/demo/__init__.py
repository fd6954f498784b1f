"""The demonstration behind `kvarter demo`: one real engine without Kvarter, one with it, compared."""
