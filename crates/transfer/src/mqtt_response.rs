//! Responses to the steps of a transfer over MQTT, as in EMQX.

use mqtt::ReasonCode;
use serde::Serialize;

use crate::error::TransferError;
use crate::file_info::TransferStatus;

/// Version of the response.
const VERSION: &str = "0.1";

#[derive(Serialize)]
struct ResponsePayload<'a> {
    vsn: &'static str,
    /// The topic of the step.
    topic: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    packet_id: Option<u16>,
    reason_code: u8,
    reason_description: String,
    /// Fields of the answer to `status`.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    status: Option<TransferStatus>,
}

/// The result of a step: for `status`, what was received.
pub(crate) type StepResult = Result<Option<TransferStatus>, TransferError>;

pub(crate) fn reason_of(result: &StepResult) -> ReasonCode {
    match result {
        Ok(_) => ReasonCode::SUCCESS,
        Err(error) => error.kind.reason_code(),
    }
}

/// The payload of a response.
pub(crate) fn encode_response(topic: &str, packet_id: u16, result: StepResult) -> Vec<u8> {
    let reason_code = reason_of(&result).0;
    let (reason_description, status) = match result {
        Ok(status) => ("success".to_owned(), status),
        Err(error) => (error.to_string(), None),
    };
    let payload = ResponsePayload {
        vsn: VERSION,
        topic,
        packet_id: (packet_id != 0).then_some(packet_id),
        reason_code,
        reason_description,
        status,
    };
    serde_json::to_vec(&payload).expect("it contains only strings and numbers")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::error::TransferErrorKind;
    use crate::record::FileState;

    #[test]
    fn responses_have_the_fields_of_emqx() {
        let read = |packet_id, result| -> Value {
            let payload = encode_response("$file/f/0", packet_id, result);
            serde_json::from_slice(&payload).expect("JSON")
        };
        assert_eq!(
            read(7, Ok(None)),
            json!({"vsn": "0.1", "topic": "$file/f/0", "packet_id": 7, "reason_code": 0, "reason_description": "success"})
        );
        let error = TransferError::new(TransferErrorKind::Incomplete, "x");
        let failed = read(0, Err(error));
        assert_eq!(
            failed,
            json!({"vsn": "0.1", "topic": "$file/f/0", "reason_code": 128, "reason_description": "incomplete: x"})
        );
        let status = TransferStatus {
            state: FileState::Receiving,
            is_paused: false,
            size: Some(9),
            received: vec![(0, 3)],
            missing: vec![(3, 9)],
            chunk: 1,
        };
        let answered = read(7, Ok(Some(status)));
        assert_eq!(answered["state"], "receiving");
        assert_eq!(answered["missing"], json!([[3, 9]]));
        assert_eq!(answered["reason_code"], 0);
    }
}
