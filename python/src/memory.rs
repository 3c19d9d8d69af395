//! Turns the description of the engine's block memory into layers that the client can address.
//!
//! Called once by [`crate::worker::Worker`]. The connector describes tensors by address, shape and
//! stride; the client derives where each block lies. The invariant: a region lives no longer than
//! the tensors it points into, because the worker that holds the regions also holds the tensors.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use tessera_client::geometry::{BlockGeometry, GeometryError, TensorView};
use tessera_client::layout::{BlockRun, Heads, LayerMemory};
use tessera_client::{CudaDriver, Device, DeviceError, Region};

/// One layer as the connector describes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LayerDescription {
    name: String,
    group: usize,
    tensors: Vec<TensorDescription>,
}

/// One tensor; sizes in bytes where the name says so.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorDescription {
    address: u64,
    shape: Vec<u64>,
    strides_bytes: Vec<i64>,
    item_bytes: u64,
    storage_address: u64,
    storage_bytes: u64,
    dtype: String,
    /// The axis that counts heads, where the engine says which.
    heads_axis: Option<usize>,
    /// Where the engine says that the tensor is. Which device of that kind is asked of the memory.
    device: DeviceKind,
}

/// Kinds of memory, by the engine's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DeviceKind {
    Cpu,
    Cuda,
}

/// Why block memory is refused. The message names the layer and its shape.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryError {
    /// The description cannot be read: connector and native part are of different versions.
    #[error("the description of block memory is malformed: {0}; reinstall tessera-kv")]
    Malformed(#[from] serde_json::Error),
    /// A tensor whose blocks are no fixed set of bytes.
    #[error("layer {layer}: {source}")]
    Geometry {
        layer: String,
        source: GeometryError,
    },
    /// Memory at no address.
    #[error("layer {layer} has no memory in this process: remove --kv-transfer-config")]
    NoMemory { layer: String },
    /// Memory of a device that cannot be used, or that is not its own.
    #[error("layer {layer}: {source}")]
    Device { layer: String, source: DeviceError },
    /// One layer whose parts lie on each other.
    #[error("layer {layer}: its tensors overlap: {shape}; report this model")]
    Overlap { layer: String, shape: String },
}

/// The layers of a worker, in the order given. Memory of the host belongs to `simulated` if a test
/// gives such a device.
///
/// # Safety
/// Every storage described must stay mapped, readable and writable until the last region is gone
/// and the simulated device has answered all that it was asked for.
pub(crate) unsafe fn layers(
    json: &str,
    num_blocks: u64,
    simulated: Option<Arc<dyn Device>>,
) -> Result<Vec<LayerMemory>, MemoryError> {
    let described: Vec<LayerDescription> = serde_json::from_str(json)?;
    let mut regions = Regions {
        known: BTreeMap::new(),
        simulated,
    };
    let mut layers = Vec::with_capacity(described.len());
    for layer in described {
        // SAFETY: the caller's promise covers every storage described.
        layers.push(unsafe { memory_of(layer, num_blocks, &mut regions) }?);
    }
    Ok(layers)
}

/// Regions by address and length, so that layers of one storage share one.
struct Regions {
    known: BTreeMap<(u64, u64), Arc<Region>>,
    simulated: Option<Arc<dyn Device>>,
}

/// # Safety
/// As [`layers`].
unsafe fn memory_of(
    layer: LayerDescription,
    num_blocks: u64,
    regions: &mut Regions,
) -> Result<LayerMemory, MemoryError> {
    let LayerDescription {
        name,
        group,
        tensors,
    } = layer;
    let mut runs = Vec::new();
    let mut format = String::new();
    let mut parts: Vec<(u64, BlockGeometry)> = Vec::new();
    let mut heads = Some(Vec::with_capacity(tensors.len()));
    for tensor in tensors {
        let (place, dtype) = (
            (tensor.storage_address, tensor.storage_bytes),
            tensor.dtype.clone(),
        );
        let (kind, axis) = (tensor.device, tensor.heads_axis);
        let view = view_of(tensor);
        let geometry =
            BlockGeometry::derive(&view, num_blocks).map_err(|source| MemoryError::Geometry {
                layer: name.clone(),
                source,
            })?;
        let overlaps = |(storage, other): &(u64, BlockGeometry)| {
            *storage == place.0 && !geometry.is_disjoint(other)
        };
        if parts.iter().any(overlaps) {
            return Err(MemoryError::Overlap {
                layer: name,
                shape: view.to_string(),
            });
        }
        // SAFETY: the caller's promise covers this storage.
        let region = unsafe { region_of(kind, place, regions) };
        let region = region.map_err(|source| MemoryError::Device {
            layer: name.clone(),
            source,
        })?;
        let region = region.ok_or_else(|| MemoryError::NoMemory {
            layer: name.clone(),
        })?;
        runs.extend(BlockRun::all(&region, &geometry));
        // What cannot be described head by head is moved as a whole only.
        let each = axis.and_then(|axis| BlockGeometry::of_each(&view, axis, num_blocks).ok());
        match (&mut heads, each) {
            (Some(heads), Some(each)) => heads.push((dtype.clone(), Arc::clone(&region), each)),
            _ => heads = None,
        }
        format.push_str(&format!("{dtype} {:?};", geometry.order));
        parts.push((place.0, geometry));
    }
    Ok(LayerMemory {
        name,
        group,
        format,
        num_blocks,
        runs,
        heads: heads.and_then(heads_of),
    })
}

/// The tensors of a layer head by head, if all of them have as many.
fn heads_of(tensors: Vec<(String, Arc<Region>, Vec<BlockGeometry>)>) -> Option<Heads> {
    let count = tensors.first()?.2.len();
    let mut heads = Heads {
        format: String::new(),
        runs: vec![Vec::new(); count],
    };
    for (dtype, region, each) in tensors {
        heads
            .format
            .push_str(&format!("{dtype} {:?};", each.first()?.order));
        if each.len() != count {
            return None;
        }
        for (runs, geometry) in heads.runs.iter_mut().zip(&each) {
            runs.extend(BlockRun::all(&region, geometry));
        }
    }
    Some(heads)
}

fn view_of(tensor: TensorDescription) -> TensorView {
    TensorView {
        address: tensor.address,
        shape: tensor.shape,
        strides_bytes: tensor.strides_bytes,
        item_bytes: tensor.item_bytes,
        storage_address: tensor.storage_address,
        storage_bytes: tensor.storage_bytes,
    }
}

/// # Safety
/// The storage at `place` must stay mapped, readable and writable until the last region is gone.
unsafe fn region_of(
    kind: DeviceKind,
    place: (u64, u64),
    regions: &mut Regions,
) -> Result<Option<Arc<Region>>, DeviceError> {
    if let Some(region) = regions.known.get(&place) {
        return Ok(Some(Arc::clone(region)));
    }
    let (Ok(address), Ok(length)) = (usize::try_from(place.0), usize::try_from(place.1)) else {
        return Ok(None);
    };
    if address == 0 || length == 0 {
        return Ok(None);
    }
    let base = std::ptr::with_exposed_provenance_mut(address);
    let region = match (kind, &regions.simulated) {
        // SAFETY: not null; the caller keeps the storage mapped for as long as the region lives.
        (DeviceKind::Cpu, None) => unsafe { Region::from_raw(base, length) },
        (DeviceKind::Cpu, Some(device)) => {
            // SAFETY: as above.
            unsafe { Region::on_device(device, base, length) }?
        }
        (DeviceKind::Cuda, _) => {
            let device = cuda()?.owner(address, length)?;
            // SAFETY: as above, and the device is the one that owns the memory.
            unsafe { Region::on_device(&device, base, length) }?
        }
    };
    regions.known.insert(place, Arc::clone(&region));
    Ok(Some(region))
}

/// The CUDA driver, loaded when the first tensor asks for it.
fn cuda() -> Result<Arc<CudaDriver>, DeviceError> {
    static LOADED: Mutex<Option<Arc<CudaDriver>>> = Mutex::new(None);
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = &*loaded {
        return Ok(Arc::clone(driver));
    }
    let driver = CudaDriver::load()?;
    *loaded = Some(Arc::clone(&driver));
    Ok(driver)
}
