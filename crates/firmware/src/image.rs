//! Reads an image once, and computes and verifies the fields of its package.

use std::fs::File;
use std::io::Read as _;

use memmap2::MmapOptions;
use transfer::{FileService, FileState, FileTarget};

use crate::definition_error::DefinitionError;
use crate::digest::ImageDigest;
use crate::package::FirmwareDefinition;
use crate::signature::{ParsedSignature, TrustedKeys};

const PIECE_BYTES: usize = 1 << 20;

/// Fills in what is computed from the image.
///
/// # Errors
/// Names the field that does not describe the image.
pub(crate) fn verify_image(
    package: &mut FirmwareDefinition,
    files: &FileService,
    keys: &TrustedKeys,
) -> Result<(), DefinitionError> {
    if keys.requires_signature && package.signature.is_none() {
        let detail = "this node accepts signed packages only (firmware.require_signature)";
        return Err(DefinitionError::new("signature", detail));
    }
    let absent = || {
        let detail = format!(
            "there is no complete file {:?} in the namespace {:?}; upload it first",
            package.file, package.namespace
        );
        DefinitionError::new("file", detail)
    };
    let info = files
        .info(FileTarget::Id(&package.file))
        .ok_or_else(absent)?;
    if info.owner.namespace != package.namespace || info.state != FileState::Complete {
        return Err(absent());
    }
    let (info, file) = files.read(&package.file).map_err(|_| absent())?;
    let size = info.size.unwrap_or(0);
    if size == 0 {
        return Err(DefinitionError::new("file", "the file is empty"));
    }
    let found = read_image(package, keys, file, size)?;
    if package.size.is_some_and(|given| given != size) {
        let detail = format!("the file has {size} bytes");
        return Err(DefinitionError::new("size", detail));
    }
    if package.sha256.is_some() && package.sha256 != info.checksum {
        return Err(DefinitionError::new(
            "sha256",
            "the file has another digest",
        ));
    }
    if let Some(given) = &package.digest
        && !given.eq_ignore_ascii_case(&found.digest)
    {
        let detail = format!("the file has the digest {}", found.digest);
        return Err(DefinitionError::new("digest", detail));
    }
    package.size = Some(size);
    package.sha256 = info.checksum;
    package.digest = Some(found.digest);
    package.signed_by = found.signed_by;
    Ok(())
}

struct ImageFacts {
    digest: String,
    signed_by: Option<String>,
}

fn unreadable(error: &std::io::Error) -> DefinitionError {
    DefinitionError::new("file", format!("the file cannot be read: {error}"))
}

fn read_image(
    package: &FirmwareDefinition,
    keys: &TrustedKeys,
    file: File,
    size: u64,
) -> Result<ImageFacts, DefinitionError> {
    let signature = package.signature.as_ref();
    let signature = signature
        .map(|signature| keys.parse(signature))
        .transpose()?;
    let mut digest = ImageDigest::new(package.digest_algorithm);
    let signed_by = match &signature {
        None => {
            for_each_piece(file, |piece| digest.update(piece))?;
            None
        }
        Some(ParsedSignature::Minisign(signature)) => {
            let (mut verifier, key) = keys.minisign_verifier(signature)?;
            for_each_piece(file, |piece| {
                digest.update(piece);
                verifier.update(piece);
            })?;
            verifier.finalize().map_err(|_| {
                DefinitionError::new("signature.value", "it is not a signature of this image")
            })?;
            Some(key)
        }
        Some(ParsedSignature::X509 { value, chain }) => {
            let len = usize::try_from(size).map_err(|_| {
                let detail = format!("an image of {size} bytes cannot be mapped into memory");
                DefinitionError::new("signature.scheme", detail)
            })?;
            // SAFETY: complete files are never written or truncated, and the directory of the files belongs to this process
            // alone, as its lock guarantees. The file may be removed while it is mapped.
            let image = unsafe { MmapOptions::new().len(len).map(&file) };
            let image = image.map_err(|error| unreadable(&error))?;
            // A file that cannot be read ends here with an error, and not the process while it reads the mapped memory.
            for_each_piece(file, |piece| digest.update(piece))?;
            Some(keys.verify_x509(value, chain, &image)?)
        }
    };
    Ok(ImageFacts {
        digest: digest.finish(),
        signed_by,
    })
}

fn for_each_piece(mut file: File, mut each: impl FnMut(&[u8])) -> Result<(), DefinitionError> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece).map_err(|error| unreadable(&error))? {
            0 => return Ok(()),
            count => each(&piece[..count]),
        }
    }
}
