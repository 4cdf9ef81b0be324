//! mount(2) by this process; needs `CAP_SYS_ADMIN`.

use super::error::MountError;
use crate::options::MountOptions;
use crate::transport::device::Device;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Mounts a new device at `path`.
pub(super) fn mount(path: &Path, options: &MountOptions) -> Result<Device, MountError> {
    let device = Device::open().map_err(MountError::Device)?;
    let refused = |error: io::Error| MountError::Refused { path: path.to_path_buf(), error };
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| refused(io::ErrorKind::InvalidInput.into()));
    let source = text(options.source.as_bytes())?;
    let target = text(path.as_os_str().as_bytes())?;
    let fstype = text(format!("fuse.{}", options.subtype).as_bytes())?;
    let data = text(data(&device, options).as_bytes())?;
    let flags = [
        (!options.allow_set_id, libc::MS_NOSUID),
        (!options.allow_devices, libc::MS_NODEV),
        (options.read_only, libc::MS_RDONLY),
    ];
    let flags = flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag);
    // SAFETY: all four strings end with a NUL and outlive the call.
    let result = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), fstype.as_ptr(), flags, data.as_ptr().cast())
    };
    if result == 0 { Ok(device) } else { Err(refused(io::Error::last_os_error())) }
}

fn data(device: &Device, options: &MountOptions) -> String {
    // SAFETY: getuid and getgid have no arguments and cannot fail.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let mut data = format!("fd={},rootmode=40000,user_id={uid},group_id={gid}", device.raw());
    if options.allow_other {
        data.push_str(",allow_other");
    }
    if options.default_permissions {
        data.push_str(",default_permissions");
    }
    if let Some(max_read) = options.max_read {
        data.push_str(&format!(",max_read={max_read}"));
    }
    data
}
