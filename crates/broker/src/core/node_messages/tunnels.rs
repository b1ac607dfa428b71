//! Messages about connections whose session is at another node, see [`TunnelMessage`].

use bytes::{BufMut, Bytes, BytesMut};
use hooks::CertificateNames;

use super::fields::{NodeMessageError, NodeMessageReader, TUNNEL, put_text};
use crate::core::tunnel::{self, TunnelMessage, TunnelRequest};

const TUNNEL_OPEN: u8 = 1;
const TUNNEL_INPUT: u8 = 2;
const TUNNEL_OUTPUT_CREDIT: u8 = 3;
const TUNNEL_ENTRY_CLOSED: u8 = 4;
const TUNNEL_OUTPUT: u8 = 5;
const TUNNEL_INPUT_CREDIT: u8 = 6;
const TUNNEL_EXIT_CLOSED: u8 = 7;

/// More names than a certificate of a client has.
const MAX_CERTIFICATE_NAMES: u32 = 1000;

pub(crate) fn encode_tunnel(tunnel: u64, message: &TunnelMessage) -> Bytes {
    let (kind, body) = match message {
        TunnelMessage::Open(_) => (TUNNEL_OPEN, &[][..]),
        TunnelMessage::Input(bytes) => (TUNNEL_INPUT, &**bytes),
        TunnelMessage::OutputCredit(bytes) => (TUNNEL_OUTPUT_CREDIT, &bytes.to_le_bytes()[..]),
        TunnelMessage::EntryClosed => (TUNNEL_ENTRY_CLOSED, &[][..]),
        TunnelMessage::Output(bytes) => (TUNNEL_OUTPUT, &**bytes),
        TunnelMessage::InputCredit(bytes) => (TUNNEL_INPUT_CREDIT, &bytes.to_le_bytes()[..]),
        TunnelMessage::ExitClosed => (TUNNEL_EXIT_CLOSED, &[][..]),
    };
    let mut out = BytesMut::with_capacity(10 + body.len());
    out.put_u8(TUNNEL);
    out.put_u64_le(tunnel);
    out.put_u8(kind);
    out.put_slice(body);
    if let TunnelMessage::Open(request) = message {
        encode_tunnel_request(request, &mut out);
    }
    out.freeze()
}

fn encode_tunnel_request(request: &TunnelRequest, out: &mut BytesMut) {
    put_text(out, &request.node);
    put_text(out, &request.listener);
    put_text(out, &tunnel::address_text(request.peer));
    match &request.certificate {
        None => out.put_u8(0),
        Some(names) => {
            out.put_u8(1);
            out.put_u8(names.common_name.is_some().into());
            put_text(out, names.common_name.as_deref().unwrap_or_default());
            out.put_u32_le(names.alternative_names.len() as u32);
            for name in &names.alternative_names {
                put_text(out, name);
            }
        }
    }
    out.put_slice(&request.connect);
}

impl NodeMessageReader<'_> {
    /// The rest of the message.
    pub(super) fn tunnel_message(&mut self) -> Result<TunnelMessage, NodeMessageError> {
        let message = match self.u8()? {
            TUNNEL_OPEN => TunnelMessage::Open(Box::new(self.tunnel_request()?)),
            TUNNEL_INPUT => TunnelMessage::Input(self.take_rest()),
            TUNNEL_OUTPUT_CREDIT => TunnelMessage::OutputCredit(self.u32()?),
            TUNNEL_ENTRY_CLOSED => TunnelMessage::EntryClosed,
            TUNNEL_OUTPUT => TunnelMessage::Output(self.take_rest()),
            TUNNEL_INPUT_CREDIT => TunnelMessage::InputCredit(self.u32()?),
            TUNNEL_EXIT_CLOSED => TunnelMessage::ExitClosed,
            other => return Err(NodeMessageError::Kind(other)),
        };
        match self.rest.len() {
            0 => Ok(message),
            excess => Err(NodeMessageError::Excess(excess)),
        }
    }

    fn tunnel_request(&mut self) -> Result<TunnelRequest, NodeMessageError> {
        let (node, listener) = (self.name()?, self.name()?);
        let peer = tunnel::parse_address(&self.name()?).ok_or(NodeMessageError::Name)?;
        let certificate = match self.u8()? {
            0 => None,
            _ => Some(self.certificate_names()?),
        };
        Ok(TunnelRequest {
            node,
            listener,
            peer,
            certificate,
            connect: self.take_rest(),
        })
    }

    fn certificate_names(&mut self) -> Result<CertificateNames, NodeMessageError> {
        let has_common_name = self.u8()? != 0;
        let common_name = self.name()?;
        let count = self.u32()?;
        if count > MAX_CERTIFICATE_NAMES {
            return Err(NodeMessageError::Name);
        }
        let mut names = Vec::new();
        for _ in 0..count {
            names.push(self.name()?);
        }
        Ok(CertificateNames {
            common_name: has_common_name.then_some(common_name),
            alternative_names: names.into(),
        })
    }
}
