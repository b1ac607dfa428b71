import { useLingui } from '@lingui/react/macro';
import { api, unwrap, useRead } from '../../api/client';
import { formatBytes, formatNumber } from '../../format';
import { Tile } from './tile';

const refreshMs = 15_000;
/** The last samples; the newest one may not be there yet. */
const spanMs = 120_000;
/** Free space from which on somebody should look. */
const littleBytes = 1024 ** 3;

const metrics = [
  'store_log_bytes',
  'store_keyed_state_bytes',
  'telemetry_segment_bytes',
  'telemetry_wal_bytes',
  'files_bytes',
  'store_free_bytes',
  'telemetry_free_bytes',
  'process_resident_memory_bytes',
  'process_cpu_seconds_per_s',
];

/** What the node has on its disks, and its memory and processor time. */
export function Storage() {
  const { t } = useLingui();
  const history = useRead(
    ['node-history', 'storage'],
    (signal) => {
      const query = { metrics: metrics.join(','), from_ms: Date.now() - spanMs };
      return unwrap(api.GET('/api/v1/node/history', { params: { query }, signal }));
    },
    { every: refreshMs },
  );
  const last = (name: string): number | undefined => {
    const values = history.data?.columns.find((column) => column.name === name)?.avg ?? [];
    return values.findLast((value) => value !== null) ?? undefined;
  };
  const bytes = (...names: string[]): string | undefined => {
    const known = names.map(last).filter((value) => value !== undefined);
    return known.length === 0 ? undefined : formatBytes(known.reduce((sum, value) => sum + value, 0));
  };
  const free = Math.min(last('store_free_bytes') ?? Infinity, last('telemetry_free_bytes') ?? Infinity);
  const cores = last('process_cpu_seconds_per_s');
  return (
    <div className="tiles" role="group" aria-label={t`Disk and memory`}>
      <Tile
        label={t`Messages and sessions`}
        value={bytes('store_log_bytes', 'store_keyed_state_bytes')}
        unit={t`on disk`}
      />
      <Tile label={t`Telemetry`} value={bytes('telemetry_segment_bytes', 'telemetry_wal_bytes')} unit={t`on disk`} />
      <Tile label={t`Files`} href="/files" value={bytes('files_bytes')} unit={t`on disk`} />
      <Tile
        label={t`Free on the disk`}
        value={
          free === Infinity ? undefined : (
            <span className={free < littleBytes ? 'state-critical' : undefined}>{formatBytes(free)}</span>
          )
        }
      />
      <Tile label={t`Memory of the node`} value={bytes('process_resident_memory_bytes')} />
      <Tile
        label={t`Processor`}
        value={cores === undefined ? undefined : `${formatNumber(cores * 100, 1)} %`}
        unit={t`of a core`}
      />
    </div>
  );
}
