//! The rule language: one SQL statement over the events of a broker, compiled once, evaluated for every message that can match.
//!
//! Pure: no I/O, no threads, no clock, no randomness but what it is given. Everything of one evaluation lives in one arena.
