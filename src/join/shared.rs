//! The store that control nodes share, where their authorities keep documents in the place of files: a token that one of
//! them has made is known to the others, and used up once.
//!
//! Owns the wait for the store: whoever has an authority waits for files as well. It refuses to know the documents.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use tokio::runtime::Builder;

use super::JoinError;
use crate::config::Config;
use crate::controller::core::InstanceName;
use crate::controller::service::store_options;
use crate::controller::store::{self, Options, Store, StoredDocument};

/// The store of the control nodes, once it is needed. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct SharedStore {
    options: Options,
    node: InstanceName,
    /// Locked for moments.
    opened: Arc<Mutex<Option<Store>>>,
}

impl SharedStore {
    /// The store of this node's controller, if other control nodes may use it, too.
    ///
    /// # Errors
    /// The settings are wrong.
    pub(crate) fn of(config: &Config) -> Result<Option<Self>, JoinError> {
        let Some(controller) = &config.controller else { return Ok(None) };
        // Where a file would be does not matter: it is not shared.
        let options = store_options(controller, Path::new("")).map_err(of)?;
        let node = InstanceName::from(config.node.id.as_str());
        Ok(options.is_shared().then(|| Self { options, node, opened: Arc::default() }))
    }

    /// A store in a file, which one process alone has.
    #[cfg(test)]
    pub(super) fn in_file(path: &Path) -> Self {
        let (options, node) = (Options::Sqlite(path.to_owned()), InstanceName::from("c1"));
        Self { options, node, opened: Arc::default() }
    }

    pub(super) fn all(&self, kind: &str) -> Result<Vec<StoredDocument>, JoinError> {
        let kind = kind.to_owned();
        self.ask(|store| async move { store.documents(kind).await })
    }

    pub(super) fn one(&self, kind: &str, name: &str) -> Result<Option<StoredDocument>, JoinError> {
        let (kind, name) = (kind.to_owned(), name.to_owned());
        self.ask(|store| async move { store.document(kind, name).await })
    }

    pub(super) fn write(&self, document: StoredDocument) -> Result<bool, JoinError> {
        self.ask(|store| async move { store.write_document(document).await })
    }

    pub(super) fn remove(&self, kind: &str, name: &str) -> Result<bool, JoinError> {
        let (kind, name) = (kind.to_owned(), name.to_owned());
        self.ask(|store| async move { store.delete_document(kind, name).await })
    }

    /// Waits on a thread of its own, because the caller's may belong to a runtime, which must not wait.
    fn ask<T: Send, A: Future<Output = Result<T, store::Error>>>(
        &self,
        ask: impl FnOnce(Store) -> A + Send,
    ) -> Result<T, JoinError> {
        let wait = move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| JoinError::Unready(error.to_string()))?;
            let asking = async {
                let known = self.opened.lock().clone();
                let store = match known {
                    Some(store) => store,
                    None => Store::open(&self.options, &self.node).await?,
                };
                *self.opened.lock() = Some(store.clone());
                ask(store).await
            };
            runtime.block_on(asking).map_err(of)
        };
        let waited = thread::scope(|scope| scope.spawn(wait).join());
        waited.unwrap_or_else(|_| Err(JoinError::Unready("the store could not be asked".to_owned())))
    }
}

fn of(error: store::Error) -> JoinError {
    JoinError::Unready(format!("the store of the control nodes: {error}"))
}
