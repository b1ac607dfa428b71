//! Authentication of clients: passwords, certificates, SCRAM-SHA-256 and re-authentication [MQTT-4.12]. Slow checks
//! complete later: the client waits, the shard does not.
//!
//! It orchestrates: the exchange is in the connection, and what the client was granted in its `ConnectionGrant`.

use hooks::{Authentication, Client, ConnectionInfo, Credentials, Interest};
use mqtt::{Auth, Connect, Direction, Packet, PropertiesBuf, Property, ReasonCode, Version};

use super::connect::{connect_rejection, decode_connect, denied};
use super::connection::{AuthExchange, CloseReason, Connection, ConnectionGrant, ConnectionPhase};
use super::shard::{ConnectionAction, Shard};
use super::tables::ConnectionIx;
use scram::ServerScram;

const SCRAM_SHA_256: &str = "SCRAM-SHA-256";
/// Bytes a client may send ahead while it is being authenticated.
const MAX_BYTES_DURING_AUTHENTICATION: usize = 256 * 1024;

impl Shard {
    /// Asks the hooks first; if they do not decide, the users of the configuration and the listener's rules do.
    /// `Ignore`: the client is accepted without an authenticated name.
    pub(crate) fn authenticate(
        &mut self,
        at: ConnectionIx,
        connect: &Connect<'_>,
    ) -> Authentication {
        match self.authenticate_with_hooks(at, connect, None) {
            Authentication::Ignore => {}
            decided => return decided,
        }
        let connection = &self.delivery.connections[at];
        let listener = self.node.listeners[usize::from(connection.listener)].config();
        if self.certificate_username(connection).is_some() {
            return Authentication::allow();
        }
        match (connect.username, connect.password) {
            (Some(username), Some(password)) if !self.node.users.is_empty() => {
                // An unknown user takes the same time and gets the same answer.
                let credential = match self.node.users.get(username) {
                    Some(credential) => credential.clone(),
                    None => self.node.decoy.credential(username),
                };
                (self.check_password)(credential, password.to_vec())
            }
            _ if listener.allows_anonymous() => Authentication::Ignore,
            (Some(_), _) => Authentication::Deny(ReasonCode::BAD_USER_NAME_OR_PASSWORD),
            (None, _) => Authentication::Deny(ReasonCode::NOT_AUTHORIZED),
        }
    }

    /// `proven`: the user name proven by an enhanced authentication.
    fn authenticate_with_hooks(
        &mut self,
        at: ConnectionIx,
        connect: &Connect<'_>,
        proven: Option<&str>,
    ) -> Authentication {
        if !self.delivery.interest.contains(Interest::AUTHENTICATE) {
            return Authentication::Ignore;
        }
        let connection = &self.delivery.connections[at];
        let listener = self.node.listeners[usize::from(connection.listener)].config();
        let extra = connection.extra.as_ref();
        let credentials = Credentials {
            client: Client {
                client_id: connect.client_id,
                username: proven.or(connect.username),
                peer: Some(connection.peer),
                last_address: None,
                local_address: connection.local_address.as_ref(),
                version: connect.version,
                connection: ConnectionInfo::default(),
            },
            password: connect.password,
            certificate: extra.and_then(|extra| extra.certificate.as_deref()),
            method: connect.properties.authentication_method(),
            listener: &listener.name,
            allows_anonymous: listener.allows_anonymous(),
            common_name_as_username: listener
                .tls
                .as_ref()
                .is_some_and(|tls| tls.common_name_as_username),
            keep_alive_s: connect.keep_alive_s,
            clean_start: connect.clean_start,
        };
        match proven {
            None => self.delivery.hooks.authenticate(&credentials),
            Some(_) => self.delivery.hooks.enhanced_auth_succeeded(&credentials),
        }
    }

    /// Stores what an accepted client was granted. Its user name is the granted one, or the one proven by an enhanced
    /// authentication or its certificate, or else the one it sent.
    pub(crate) fn apply_grant(
        &mut self,
        at: ConnectionIx,
        connect: &Connect<'_>,
        given: hooks::ClientGrant,
    ) {
        let by_certificate = self
            .certificate_username(&self.delivery.connections[at])
            .map(Into::into);
        let extra = self.delivery.connections[at].extra();
        let grant = extra.grant.get_or_insert_default();
        let claimed = match given.is_anonymous {
            true => None,
            false => connect.username.map(Into::into),
        };
        let known = grant.username.take().or(by_certificate);
        grant.username = given.username.or(known).or(claimed);
        grant.client_id = given.client_id;
        grant.permissions = given.permissions;
        grant.expires_at_ms = given.expires_at_ms;
    }

    /// Closes a connection whose grant has expired.
    pub(crate) fn close_on_grant_expiry(&mut self, at: ConnectionIx, serial: u32) {
        let connection = self.delivery.connections.get_mut(at);
        let Some(connection) = connection.filter(|connection| connection.serial == serial) else {
            return;
        };
        if let Some(extra) = &mut connection.extra {
            extra.expiry_timer = None;
        }
        let why = CloseReason::new(ReasonCode::NOT_AUTHORIZED, "credentials_expired");
        self.close(at, why.with_detail("the credentials have expired"));
    }

    /// Where the certificate determines the user name, no other credential may name another user.
    pub(crate) fn check_certificate_username(
        &self,
        at: ConnectionIx,
        shown: Option<&str>,
    ) -> Result<(), CloseReason> {
        let connection = &self.delivery.connections[at];
        match (self.certificate_username(connection), shown) {
            (Some(certified), Some(shown)) if certified != shown => Err(connect_rejection(
                ReasonCode::BAD_USER_NAME_OR_PASSWORD,
                format!(
                    "the certificate names the user {certified:?} and CONNECT {shown:?}; leave the user name out or \
                     give the certificate's"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The common name of the client's certificate, where the listener uses it as the user name.
    fn certificate_username<'a>(&self, connection: &'a Connection) -> Option<&'a str> {
        let listener = self.node.listeners[usize::from(connection.listener)].config();
        let tls = listener.tls.as_ref()?;
        let extra = connection
            .extra
            .as_ref()
            .filter(|_| tls.common_name_as_username)?;
        extra.certificate.as_ref()?.common_name.as_deref()
    }

    /// Completes an authentication that took time.
    pub(crate) fn complete_authentication(
        &mut self,
        at: ConnectionIx,
        serial: u32,
        answer: Authentication,
    ) -> ConnectionAction {
        let Some(connection) = self.delivery.connections.get_mut(at) else {
            return ConnectionAction::Continue;
        };
        if connection.serial != serial || connection.phase != ConnectionPhase::Authenticating {
            return ConnectionAction::Continue;
        }
        connection.phase = ConnectionPhase::AwaitConnect;
        let raw = std::mem::take(&mut connection.extra().connect);
        let result = match (answer, decode_connect(&raw)) {
            (Authentication::Allow(given), Some(connect)) => {
                self.apply_grant(at, &connect, *given);
                let extra = self.delivery.connections[at].extra();
                extra.connect.clone_from(&raw);
                self.establish_session(at)
            }
            (Authentication::Deny(code), _) => Err(denied(code)),
            _ => Err(denied(ReasonCode::NOT_AUTHORIZED)),
        };
        match result {
            Ok(flow) => flow,
            Err(closing) => {
                self.reject_connect(at, closing, &raw);
                ConnectionAction::Close
            }
        }
    }

    /// Handles input during an authentication: AUTH goes to the exchange, everything else waits.
    pub(crate) fn receive_during_authentication(
        &mut self,
        at: ConnectionIx,
        data: &[u8],
    ) -> ConnectionAction {
        let connection = &mut self.delivery.connections[at];
        connection.partial_packets.extend_from_slice(data);
        if connection.partial_packets.len() > MAX_BYTES_DURING_AUTHENTICATION {
            self.close(at, CloseReason::without_code("protocol_error"));
            return ConnectionAction::Close;
        }
        if self.count_partial(at) == ConnectionAction::Close {
            return ConnectionAction::Close;
        }
        let connection = &mut self.delivery.connections[at];
        if connection.extra().exchange.is_none() {
            return ConnectionAction::AwaitResume;
        }
        let max = connection.max_packet_in;
        let buffer = std::mem::take(&mut connection.partial_packets);
        let frame = match mqtt::split_frame(&buffer, max) {
            Ok(Some(frame)) => frame,
            Ok(None) => {
                self.delivery.connections[at].partial_packets = buffer;
                return ConnectionAction::Continue;
            }
            Err(error) => {
                self.reject_connect(at, error.into(), &[]);
                return ConnectionAction::Close;
            }
        };
        let len = frame.len;
        let result = match Packet::decode(frame, Version::V5, Direction::FromClient) {
            Ok(Packet::Auth(auth)) => self.continue_auth_exchange(at, &auth),
            Ok(Packet::Disconnect(_)) => Err(CloseReason::without_code("normal")),
            Ok(_) => Err(
                CloseReason::new(ReasonCode::PROTOCOL_ERROR, "protocol_error")
                    .with_detail("only AUTH and DISCONNECT may come before CONNACK"),
            ),
            Err(error) => Err(error.into()),
        };
        if let Err(closing) = result {
            self.reject_connect(at, closing, &[]);
            return ConnectionAction::Close;
        }
        self.delivery.connections[at]
            .partial_packets
            .extend_from_slice(&buffer[len..]);
        match result {
            Ok(ConnectionAction::Continue) => self.resume(at),
            Ok(flow) => flow,
            Err(_) => ConnectionAction::Close,
        }
    }

    /// Starts an enhanced authentication [MQTT-4.12]: SCRAM-SHA-256 against the users of the configuration and of
    /// hooks.
    pub(crate) fn begin_auth_exchange(
        &mut self,
        at: ConnectionIx,
        connect: &Connect<'_>,
        method: &str,
        data: Option<&[u8]>,
    ) -> Result<ConnectionAction, CloseReason> {
        if let Authentication::Deny(code) = self.authenticate_with_hooks(at, connect, None) {
            return Err(denied(code));
        }
        let challenge = self.scram_challenge(at, method, data)?;
        self.delivery.connections[at].phase = ConnectionPhase::Authenticating;
        self.send_auth(at, ReasonCode::CONTINUE_AUTHENTICATION, &challenge);
        Ok(ConnectionAction::Continue)
    }

    fn scram_challenge(
        &mut self,
        at: ConnectionIx,
        method: &str,
        data: Option<&[u8]>,
    ) -> Result<Vec<u8>, CloseReason> {
        let is_offered = !self.node.users.is_empty()
            || self.delivery.interest.contains(Interest::AUTHENTICATE)
                && self.delivery.hooks.offers_scram();
        if method != SCRAM_SHA_256 || !is_offered {
            // [MQTT-4.12.0-1]
            return Err(connect_rejection(
                ReasonCode::BAD_AUTHENTICATION_METHOD,
                "the authentication method is not offered here",
            ));
        }
        let failed = |_| connect_rejection(ReasonCode::NOT_AUTHORIZED, "the authentication failed");
        let node = self.node.clone();
        let asks_hooks = self.delivery.interest.contains(Interest::AUTHENTICATE);
        let mut scram = ServerScram::new().map_err(failed)?;
        let challenge = scram
            .first(data.unwrap_or(&[]), &node.decoy, |user| {
                let configured = node.users.get(user).cloned();
                configured.or_else(|| match asks_hooks {
                    true => self.delivery.hooks.scram_credential(user),
                    false => None,
                })
            })
            .map_err(failed)?;
        self.delivery.connections[at].extra().exchange = Some(AuthExchange { scram });
        Ok(challenge)
    }

    fn continue_auth_exchange(
        &mut self,
        at: ConnectionIx,
        auth: &Auth<'_>,
    ) -> Result<ConnectionAction, CloseReason> {
        let (username, data) = self.finish_auth_exchange(at, auth)?;
        self.check_certificate_username(at, Some(&username))?;
        let extra = self.delivery.connections[at].extra();
        extra.grant = Some(ConnectionGrant {
            username: Some(username.as_str().into()),
            method: Some(SCRAM_SHA_256.into()),
            data,
            ..ConnectionGrant::default()
        });
        let raw = extra.connect.clone();
        let connect = decode_connect(&raw)
            .ok_or_else(|| connect_rejection(ReasonCode::UNSPECIFIED_ERROR, "CONNECT was lost"))?;
        match self.authenticate_with_hooks(at, &connect, Some(&username)) {
            Authentication::Ignore => {}
            Authentication::Allow(given) => self.apply_grant(at, &connect, *given),
            Authentication::Deny(code) => return Err(denied(code)),
            later @ Authentication::Pending(_) => {
                let serial = self.delivery.connections[at].serial;
                self.started_authentications.push((at, serial, later));
                return Ok(ConnectionAction::AwaitResume);
            }
        }
        self.delivery.connections[at].phase = ConnectionPhase::AwaitConnect;
        self.establish_session(at)
    }

    /// Checks the client's proof; returns the user name and the server's own proof.
    fn finish_auth_exchange(
        &mut self,
        at: ConnectionIx,
        auth: &Auth<'_>,
    ) -> Result<(String, Vec<u8>), CloseReason> {
        if auth.reason != ReasonCode::CONTINUE_AUTHENTICATION
            || auth.properties.authentication_method() != Some(SCRAM_SHA_256)
        {
            // [MQTT-4.12.0-3, MQTT-4.12.0-5]
            return Err(
                CloseReason::new(ReasonCode::PROTOCOL_ERROR, "protocol_error")
                    .with_detail("AUTH: expected reason 0x18 and the method of the exchange"),
            );
        }
        let exchange = self.delivery.connections[at].extra().exchange.take();
        let Some(mut exchange) = exchange else {
            return Err(
                CloseReason::new(ReasonCode::PROTOCOL_ERROR, "protocol_error")
                    .with_detail("AUTH: no exchange is in progress"),
            );
        };
        let proof = auth.properties.authentication_data().unwrap_or(&[]);
        let Ok(data) = exchange.scram.last(proof) else {
            if self.delivery.interest.contains(Interest::AUTHENTICATE) {
                let peer = self.delivery.connections[at].peer;
                let username = exchange.scram.username();
                self.delivery.hooks.enhanced_auth_failed(username, peer);
            }
            return Err(connect_rejection(
                ReasonCode::NOT_AUTHORIZED,
                "the authentication failed",
            ));
        };
        Ok((exchange.scram.username().to_owned(), data))
    }

    fn send_auth(&mut self, at: ConnectionIx, reason: ReasonCode, data: &[u8]) {
        let mut properties = PropertiesBuf::new();
        properties.push(Property::AuthenticationMethod(SCRAM_SHA_256));
        properties.push(Property::AuthenticationData(data));
        self.delivery.write(at, |out| {
            let auth = Auth {
                reason,
                properties: properties.as_properties(),
            };
            Packet::Auth(auth).encode(Version::V5, out);
        });
    }

    /// Handles AUTH from a connected client: re-authentication [MQTT-4.12.1].
    pub(crate) fn handle_reauthentication(
        &mut self,
        at: ConnectionIx,
        auth: &Auth<'_>,
    ) -> Result<(), CloseReason> {
        let method = self.delivery.connections[at]
            .extra
            .as_ref()
            .and_then(|extra| extra.grant.as_ref())
            .and_then(|grant| grant.method.clone());
        if method.is_none() || auth.properties.authentication_method() != method.as_deref() {
            // [MQTT-4.12.0-7, MQTT-4.12.1-1]
            return Err(
                CloseReason::new(ReasonCode::PROTOCOL_ERROR, "protocol_error")
                    .with_detail("AUTH: the method differs from the one used at connect"),
            );
        }
        if auth.reason == ReasonCode::RE_AUTHENTICATE {
            let data = auth.properties.authentication_data();
            let challenge = self.scram_challenge(at, SCRAM_SHA_256, data)?;
            self.send_auth(at, ReasonCode::CONTINUE_AUTHENTICATION, &challenge);
            return Ok(());
        }
        let (username, data) = self.finish_auth_exchange(at, auth)?;
        let session = self.session_of_connection(at);
        if self.delivery.sessions[session].username.as_deref() != Some(&*username) {
            return Err(connect_rejection(
                ReasonCode::NOT_AUTHORIZED,
                "re-authentication as another user",
            ));
        }
        self.send_auth(at, ReasonCode::SUCCESS, &data);
        Ok(())
    }
}
