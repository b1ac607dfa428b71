//! Listeners and certificates that are created over the API. Both are objects in the store. The certificates are also
//! written to files, which listeners read like those of the configuration, so that replacing one is replacing its file.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use api::{ListenerChangeError, StoredCertificate, StoredListener};
use broker::BrokerHandle;
use broker::config::{ListenerConfig, MAX_ADDED_LISTENERS};
use broker::control::ListenerError;
use serde_json::{Value, json};
use store::{ExpectedVersion, Object, ObjectError, Objects, StoreError};

use crate::config::{self, DefinitionError};

/// Kinds in the store. Certificates contain their private keys.
const LISTENER: &str = "listener";
const CERTIFICATE: &str = "listener_certificate";
const MAX_CERTIFICATES: usize = 256;
const MAX_PEM_BYTES: usize = 64 * 1024;
const MAX_ID_BYTES: usize = 32;
/// In the data directory.
const DIRECTORY: &str = "certificates";

/// Creates, changes and removes listeners and certificates.
#[derive(Clone)]
pub(super) struct AddedListeners(Arc<AddedListenersInner>);

struct AddedListenersInner {
    handle: BrokerHandle,
    runtime: tokio::runtime::Handle,
    objects: Objects,
    directory: PathBuf,
    max_packet_size: u32,
    /// Why stored listeners could not be opened. Locked during each change, so that changes are made one after the other.
    problems: Mutex<BTreeMap<String, String>>,
}

impl AddedListeners {
    /// Writes the files of all stored certificates and opens the stored listeners. One that cannot be opened does not
    /// prevent the start. Blocks.
    pub(super) fn restore(
        handle: BrokerHandle,
        objects: Objects,
        data_dir: &Path,
        max_packet_size: u32,
    ) -> anyhow::Result<Self> {
        let directory = data_dir.join(DIRECTORY);
        let added = Self(Arc::new(AddedListenersInner {
            handle,
            runtime: tokio::runtime::Handle::current(),
            objects,
            directory,
            max_packet_size,
            problems: Mutex::default(),
        }));
        added.write_files().with_context(|| {
            format!(
                "cannot write the certificates of listeners to {}",
                added.0.directory.display()
            )
        })?;
        let listeners = added
            .0
            .list(LISTENER)
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        for Object {
            id: name, value, ..
        } in listeners
        {
            if let Err(error) = added.open(&name, &value) {
                let reason = reason_of(&error);
                tracing::error!(
                    listener = name,
                    reason,
                    "listener created over the API cannot be opened; the node continues without it"
                );
                added.problems().insert(name, reason);
            }
        }
        Ok(added)
    }

    fn problems(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0
            .problems
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn write_files(&self) -> anyhow::Result<()> {
        let directory = &self.0.directory;
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let certificates = self
            .0
            .list(CERTIFICATE)
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        if certificates.is_empty() {
            return Ok(());
        }
        disk::create_private_dir(directory)?;
        for Object { id, value, .. } in certificates {
            fs::write(self.file(&id), pem_of(&value))?;
        }
        Ok(())
    }

    fn file(&self, id: &str) -> PathBuf {
        self.0.directory.join(format!("{id}.pem"))
    }

    fn configuration(
        &self,
        name: &str,
        definition: &Value,
    ) -> Result<ListenerConfig, ListenerChangeError> {
        let file = |id: &str| {
            let file = self.file(id);
            (is_id(id) && file.is_file()).then_some(file)
        };
        config::added_listener(name, definition, self.0.max_packet_size, file).map_err(invalid)
    }

    fn open(&self, name: &str, definition: &Value) -> Result<(), ListenerChangeError> {
        let listener = self.configuration(name, definition)?;
        self.add(&listener)
    }

    fn add(&self, listener: &ListenerConfig) -> Result<(), ListenerChangeError> {
        let added = self
            .0
            .runtime
            .block_on(self.0.handle.add_listener(listener));
        added.map_err(not_changed)
    }

    fn close(&self, name: &str) -> Result<(), ListenerChangeError> {
        match self.0.runtime.block_on(self.0.handle.remove_listener(name)) {
            // One that could not be opened.
            Ok(()) | Err(ListenerError::UnknownListener(_)) => Ok(()),
            Err(error) => Err(not_changed(error)),
        }
    }

    fn stored(&self, kind: &str, id: &str) -> Result<Option<Value>, ListenerChangeError> {
        let found = self
            .0
            .objects
            .get(kind, id)
            .map_err(|error| unreadable(&error))?;
        Ok(found.map(|object| object.value))
    }

    /// Names of the listeners that use a certificate.
    fn users_of(&self, id: &str) -> Result<Vec<String>, ListenerChangeError> {
        let listeners = self.0.list(LISTENER).map_err(|error| unreadable(&error))?;
        let uses = |value: &Value| config::certificates_of(value).any(|used| used == id);
        let using = listeners
            .into_iter()
            .filter(|listener| uses(&listener.value));
        Ok(using.map(|listener| listener.id).collect())
    }

    fn describe(
        &self,
        id: String,
        has_private_key: bool,
    ) -> Result<StoredCertificate, ListenerChangeError> {
        let described = broker::describe_certificate_file(&self.file(&id));
        let used_by = self.users_of(&id)?;
        Ok(match described {
            Some(certificate) => StoredCertificate {
                id,
                subject: Some(certificate.subject),
                issuer: Some(certificate.issuer),
                names: certificate.names,
                not_before_ms: Some(certificate.not_before_ms),
                not_after_ms: Some(certificate.not_after_ms),
                has_private_key,
                used_by,
            },
            None => StoredCertificate {
                id,
                subject: None,
                issuer: None,
                names: Vec::new(),
                not_before_ms: None,
                not_after_ms: None,
                has_private_key,
                used_by,
            },
        })
    }
}

impl AddedListenersInner {
    fn list(&self, kind: &str) -> Result<Vec<Object>, StoreError> {
        self.objects
            .list(kind, None, MAX_CERTIFICATES.max(MAX_ADDED_LISTENERS))
    }
}

impl api::ListenerBackend for AddedListeners {
    fn stored_listeners(&self) -> Result<Vec<StoredListener>, ListenerChangeError> {
        let listeners = self.0.list(LISTENER).map_err(|error| unreadable(&error))?;
        let problems = self.problems();
        let stored = listeners.into_iter().map(|listener| StoredListener {
            problem: problems.get(&listener.id).cloned(),
            name: listener.id,
            definition: listener.value,
        });
        Ok(stored.collect())
    }

    fn put_listener(&self, name: &str, definition: &Value) -> Result<bool, ListenerChangeError> {
        let mut problems = self.problems();
        let listener = self.configuration(name, definition)?;
        let before = self.stored(LISTENER, name)?;
        if before.is_some() {
            // Its address may be the same, so that it closes before the new one opens.
            self.close(name)?;
        }
        if let Err(error) = self.add(&listener) {
            if let Some(before) = &before
                && let Err(lost) = self.open(name, before)
            {
                let reason = reason_of(&lost);
                tracing::error!(
                    listener = name,
                    reason,
                    "replaced listener cannot be opened again"
                );
                problems.insert(name.to_owned(), reason);
            }
            return Err(error);
        }
        problems.remove(name);
        let put = self
            .0
            .objects
            .put(LISTENER, name, definition.clone(), ExpectedVersion::Any);
        put.map_err(|error| not_stored("The listener is open until the node stops", &error))?;
        Ok(before.is_none())
    }

    fn open_listener(&self, name: &str) -> Result<(), ListenerChangeError> {
        let mut problems = self.problems();
        let definition = self.stored(LISTENER, name)?;
        let definition = definition.ok_or_else(|| no_listener(name))?;
        match self.open(name, &definition) {
            Ok(()) => {
                problems.remove(name);
                Ok(())
            }
            Err(error) => {
                problems.insert(name.to_owned(), reason_of(&error));
                Err(ListenerChangeError::Conflict(format!(
                    "The listener was not opened: {}.",
                    reason_of(&error).trim_end_matches('.')
                )))
            }
        }
    }

    fn remove_listener(&self, name: &str) -> Result<(), ListenerChangeError> {
        let mut problems = self.problems();
        self.close(name)?;
        problems.remove(name);
        let deleted = self.0.objects.delete(LISTENER, name, ExpectedVersion::Any);
        match deleted {
            Ok(true) => Ok(()),
            Ok(false) => Err(no_listener(name)),
            Err(error) => Err(not_stored(
                "The listener is closed until the node starts again",
                &error,
            )),
        }
    }

    fn certificates(&self) -> Result<Vec<StoredCertificate>, ListenerChangeError> {
        let stored = self
            .0
            .list(CERTIFICATE)
            .map_err(|error| unreadable(&error))?;
        let shown = stored.into_iter();
        let shown =
            shown.map(|object| self.describe(object.id, object.value["private_key"].is_string()));
        shown.collect()
    }

    fn put_certificate(
        &self,
        id: &str,
        certificate: &str,
        private_key: Option<&str>,
    ) -> Result<bool, ListenerChangeError> {
        let _changing = self.problems();
        if !is_id(id) {
            return Err(ListenerChangeError::Invalid {
                field: "id".into(),
                message: format!(
                    "expected 1 to {MAX_ID_BYTES} lower-case letters, digits, - and _, found {id:?}"
                ),
            });
        }
        check_size("certificate", certificate)?;
        check_size("private_key", private_key.unwrap_or_default())?;
        if certificate.contains("PRIVATE KEY-----") {
            return Err(ListenerChangeError::Invalid {
                field: "certificate".into(),
                message: "it contains a private key; send that in private_key".into(),
            });
        }
        let before = self.stored(CERTIFICATE, id)?;
        if before.is_none() {
            let count = self
                .0
                .list(CERTIFICATE)
                .map_err(|error| unreadable(&error))?
                .len();
            if count >= MAX_CERTIFICATES {
                return Err(ListenerChangeError::Conflict(format!(
                    "There are {MAX_CERTIFICATES} certificates already; delete those that are not used."
                )));
            }
        }
        if private_key.is_none()
            && before
                .as_ref()
                .is_some_and(|before| before["private_key"].is_string())
        {
            let users = self.users_of(id)?;
            if !users.is_empty() {
                return Err(ListenerChangeError::Conflict(format!(
                    "The listeners {users:?} need the key of the certificate {id:?}; send private_key, too."
                )));
            }
        }
        let value = json!({"certificate": certificate, "private_key": private_key});
        let cannot_write = |error: &io::Error| {
            ListenerChangeError::Unavailable(format!("The certificate cannot be written: {error}."))
        };
        disk::create_private_dir(&self.0.directory).map_err(|error| cannot_write(&error))?;
        let unfinished = self.0.directory.join(format!("{id}.new"));
        fs::write(&unfinished, pem_of(&value)).map_err(|error| cannot_write(&error))?;
        let checked = config::check_certificate_file(&unfinished, private_key.is_some());
        if let Err(error) = checked {
            let _ = fs::remove_file(&unfinished);
            // The text is from the request, and not from the file.
            let file = unfinished.display().to_string();
            return Err(ListenerChangeError::Invalid {
                message: error.message.replace(&file, "the text"),
                field: error.field,
            });
        }
        let put = self
            .0
            .objects
            .put(CERTIFICATE, id, value, ExpectedVersion::Any);
        if let Err(error) = put {
            let _ = fs::remove_file(&unfinished);
            return Err(not_stored("The certificate was not changed", &error));
        }
        fs::rename(&unfinished, self.file(id)).map_err(|error| cannot_write(&error))?;
        if before.is_some() {
            self.0.handle.reload_certificates();
        }
        Ok(before.is_none())
    }

    fn remove_certificate(&self, id: &str) -> Result<(), ListenerChangeError> {
        let _changing = self.problems();
        let users = self.users_of(id)?;
        if !users.is_empty() {
            return Err(ListenerChangeError::Conflict(format!(
                "The certificate {id:?} is used by the listeners {users:?}; change or delete them first."
            )));
        }
        match self.0.objects.delete(CERTIFICATE, id, ExpectedVersion::Any) {
            Ok(true) => {}
            Ok(false) => {
                return Err(ListenerChangeError::NotFound(format!(
                    "There is no certificate {id:?}."
                )));
            }
            Err(error) => return Err(not_stored("The certificate was not deleted", &error)),
        }
        match fs::remove_file(self.file(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::error!(certificate = id, %error, "file of a deleted certificate cannot be removed; the next start removes it");
            }
            _ => {}
        }
        Ok(())
    }
}

fn is_id(id: &str) -> bool {
    let is_id_byte = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    (1..=MAX_ID_BYTES).contains(&id.len()) && id.bytes().all(is_id_byte)
}

/// The certificate, its chain and its key as one file, so that they are replaced together.
fn pem_of(value: &Value) -> String {
    let part = |name: &str| value[name].as_str().unwrap_or_default().trim().to_owned();
    format!("{}\n{}\n", part("certificate"), part("private_key"))
}

fn check_size(field: &str, text: &str) -> Result<(), ListenerChangeError> {
    if text.len() <= MAX_PEM_BYTES {
        return Ok(());
    }
    Err(ListenerChangeError::Invalid {
        field: field.to_owned(),
        message: format!("{} bytes, expected at most {MAX_PEM_BYTES}", text.len()),
    })
}

fn invalid(error: DefinitionError) -> ListenerChangeError {
    ListenerChangeError::Invalid {
        field: error.field,
        message: error.message,
    }
}

fn no_listener(name: &str) -> ListenerChangeError {
    ListenerChangeError::NotFound(format!(
        "There is no listener {name:?} that was created over the API."
    ))
}

fn not_changed(error: ListenerError) -> ListenerChangeError {
    ListenerChangeError::Conflict(match error {
        ListenerError::NameInUse(name) => format!(
            "The configuration has a listener {name:?}; choose another name, or change the configuration and restart the node."
        ),
        error => format!("The listener was not changed: {error}."),
    })
}

fn unreadable(error: &StoreError) -> ListenerChangeError {
    ListenerChangeError::Unavailable(format!("The store cannot be read: {error}."))
}

fn not_stored(what: &str, error: &ObjectError) -> ListenerChangeError {
    ListenerChangeError::Unavailable(format!(
        "{what}, because the change cannot be stored: {error}."
    ))
}

fn reason_of(error: &ListenerChangeError) -> String {
    match error {
        ListenerChangeError::Invalid { field, message } => format!("{field}: {message}"),
        ListenerChangeError::NotFound(why)
        | ListenerChangeError::Conflict(why)
        | ListenerChangeError::Unavailable(why) => why.clone(),
    }
}
