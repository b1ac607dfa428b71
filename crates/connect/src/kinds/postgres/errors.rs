//! Classification of errors.

use crate::connector::ConnectorError;

pub(super) fn failure(error: tokio_postgres::Error) -> ConnectorError {
    let Some(database) = error.as_db_error() else {
        return ConnectorError::transient(outbound::postgres::error_message(&error));
    };
    let code = database.code().code();
    let message = format!("{} ({code})", database.message());
    // 22: data; 23: constraints; 44: check option of a view; 54: limits, such as row size; P0: raised by a trigger.
    let class = code.get(..2);
    match class {
        Some("22" | "23" | "44" | "54" | "P0") => ConnectorError::bad_rows(message),
        // The statement, or a table, column or function that is missing; privileges may be granted.
        Some("42") if code != "42501" => ConnectorError::permanent(message),
        _ => ConnectorError::transient(message),
    }
}
