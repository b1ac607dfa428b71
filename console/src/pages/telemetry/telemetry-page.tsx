import { Alert, Button, Checkbox, Menu, MultiSelect, Select } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { notifications } from '@mantine/notifications';
import { Plural, Trans, useLingui } from '@lingui/react/macro';
import { IconDownload, IconZoomOut } from '@tabler/icons-react';
import { useEffect, useMemo, useState } from 'react';
import { Link } from 'wouter';
import { api, unwrap, useRead, type Schemas } from '../../api/client';
import { withQuery } from '../../api/objects';
import { formatNumber, formatTick, formatTime } from '../../format';
import { Chart } from '../../ui/chart';
import { download, downloadFrom } from '../../ui/download';
import { Page, Panel } from '../../ui/page';
import { ShowCall } from '../../ui/show-call';
import { SpanSelect, useSpan, type Span } from '../../ui/span-select';
import { EmptyState, ErrorState, Loading } from '../../ui/states';
import { useUrlState } from '../../ui/url-state';
import { namesOf, textOf } from './names';
import { aligned, asCsv, linesOf, niceInterval, type IntervalFunction, type Line } from './series';
import './telemetry.css';

const hourMs = 3_600_000;
const dayMs = 24 * hourMs;
const ranges: readonly Span[] = ['1h', '6h', '24h', '7d', '30d'];
const functions: IntervalFunction[] = ['avg', 'min', 'max', 'sum', 'count', 'first', 'last'];
const comparisons: Record<string, number> = { day: dayMs, week: 7 * dayMs };
const points = 300;
const maxFound = 50;
const maxDevices = 20;
const maxKeys = 12;
/** Lines of a chart; more cannot be told apart. */
const maxLines = 24;

/** The keys are not chosen yet: the first ones are taken. No list of names has this text. */
const anyKeys = '%';

export default function TelemetryPage() {
  const { t } = useLingui();
  const [devicesText, setDevices] = useUrlState('devices');
  const [group, setGroup] = useUrlState('group');
  const [keysText, setKeys] = useUrlState('keys', anyKeys);
  const { span: range, spanMs: rangeMs, setSpan: setRange } = useSpan('24h', ranges);
  const [from, setFrom] = useUrlState('from');
  const [to, setTo] = useUrlState('to');
  const [functionName, setFunction] = useUrlState('function', 'avg');
  const [comparison, setComparison] = useUrlState('compare');
  const [merged, setMerged] = useUrlState('merged');
  const devices = useMemo(() => namesOf(devicesText), [devicesText]);
  const keys = useMemo(() => (keysText === anyKeys ? [] : namesOf(keysText)), [keysText]);
  const isZoomed = from !== '' && to !== '';
  const spanMs = isZoomed ? Number(to) - Number(from) : rangeMs;
  const intervalMs = niceInterval(spanMs, points);
  const aggregate = functions.find((each) => each === functionName) ?? 'avg';
  const known = useKeys(devices, group);
  const isReady = (devices.length > 0 || group !== '') && keys.length > 0;
  // The first numeric keys, so that a choice of devices shows something at once.
  const firstKeys = textOf(known.data?.slice(0, 2) ?? []);
  useEffect(() => {
    if (keysText === anyKeys && firstKeys !== '') setKeys(firstKeys);
  }, [firstKeys, keysText, setKeys]);

  const query = (shiftMs: number, now: number): Schemas['IntervalsQueryInput'] => ({
    ...(group ? { device_group: group } : { devices }),
    keys,
    from_ms: (isZoomed ? Math.floor(Number(from)) : now - spanMs) - shiftMs,
    to_ms: (isZoomed ? Math.ceil(Number(to)) : now) - shiftMs,
    interval_ms: intervalMs,
    functions: [aggregate],
    ...(group && merged ? { merged: true } : {}),
  });
  const shiftMs = comparisons[comparison] ?? 0;
  const result = useRead(
    ['telemetry', devicesText, group, keysText, range, from, to, aggregate, comparison, merged],
    async (signal) => {
      const now = Date.now();
      const read = async (shift: number) =>
        (await unwrap(api.POST('/api/v1/telemetry/query', { body: query(shift, now), signal }))).data;
      const [present, past] = await Promise.all([read(0), shiftMs > 0 ? read(shiftMs) : []]);
      const body = query(0, now);
      return {
        lines: linesOf(present, aggregate),
        past: linesOf(past, aggregate, shiftMs),
        range: [body.from_ms, body.to_ms ?? now] as [number, number],
      };
    },
    { enabled: isReady, keep: true, ...(isZoomed ? {} : { every: Math.max(2_000, Math.min(intervalMs, 60_000)) }) },
  );
  const shownRange = result.data?.range;
  const zoom = (fromMs: number, toMs: number) => {
    setFrom(String(Math.floor(fromMs)));
    setTo(String(Math.ceil(toMs)));
  };
  const resetZoom = () => {
    setFrom('');
    setTo('');
  };
  return (
    <Page
      title={t`Telemetry`}
      description={t`Values of devices over time: compare devices and periods, zoom by dragging across a chart, export.`}
      actions={
        isReady && (
          <>
            <ShowCall method="POST" path="/api/v1/telemetry/query" body={query(0, shownRange?.[1] ?? 0)} />
            <ExportMenu
              devices={devices}
              group={group}
              keys={keys}
              range={shownRange}
              lines={result.data?.lines ?? []}
            />
          </>
        )
      }
    >
      <section className="panel">
        <div className="telemetry-controls">
          <DeviceSelect value={devices} onChange={(next) => setDevices(textOf(next))} isDisabled={group !== ''} />
          <GroupSelect
            value={group}
            onChange={(next) => {
              setGroup(next);
              if (next) setDevices('');
            }}
          />
          <MultiSelect
            label={t`Keys`}
            placeholder={keys.length === 0 ? t`Choose what to chart` : undefined}
            searchable
            clearable
            maxValues={maxKeys}
            disabled={devices.length === 0 && group === ''}
            data={[...new Set([...keys, ...(known.data ?? [])])]}
            value={keys}
            onChange={(next) => setKeys(textOf(next))}
            nothingFoundMessage={t`The devices have no values yet`}
          />
          <Select
            label={t`Value per interval`}
            allowDeselect={false}
            value={aggregate}
            onChange={(next) => setFunction(next ?? 'avg')}
            data={[
              { value: 'avg', label: t`Mean` },
              { value: 'min', label: t`Minimum` },
              { value: 'max', label: t`Maximum` },
              { value: 'sum', label: t`Sum` },
              { value: 'count', label: t`Number of values` },
              { value: 'first', label: t`First` },
              { value: 'last', label: t`Last` },
            ]}
          />
          <Select
            label={t`Compare with`}
            clearable
            placeholder={t`nothing`}
            value={comparison || null}
            onChange={(next) => setComparison(next ?? '')}
            data={[
              { value: 'day', label: t`the day before` },
              { value: 'week', label: t`the week before` },
            ]}
          />
        </div>
        <div className="table-toolbar wrap telemetry-range">
          <SpanSelect
            offered={ranges}
            value={isZoomed ? '' : range}
            onChange={(next) => {
              resetZoom();
              setRange(next);
            }}
          />
          {isZoomed && (
            <>
              <span className="dimmed">
                {formatTime(Number(from))} – {formatTime(Number(to))}
              </span>
              <Button variant="default" leftSection={<IconZoomOut size={14} />} onClick={resetZoom}>
                <Trans>Zoom out</Trans>
              </Button>
            </>
          )}
          {group !== '' && (
            <Checkbox
              size="xs"
              label={t`All devices as one`}
              checked={merged !== ''}
              onChange={(event) => setMerged(event.currentTarget.checked ? '1' : '')}
            />
          )}
          {isReady && (
            <span className="dimmed">
              <Trans>one point per {formatInterval(intervalMs)}</Trans>
            </span>
          )}
        </div>
      </section>
      {!isReady ? (
        <section className="panel">
          <EmptyState title={<Trans>Choose devices and keys</Trans>}>
            <Trans>
              Choose up to 20 devices, or a group, and the values to chart. The address of this page then is a link to
              the chart.
            </Trans>
          </EmptyState>
        </section>
      ) : result.error && !result.data ? (
        <section className="panel">
          <ErrorState error={result.error} retry={() => void result.refetch()} />
        </section>
      ) : !result.data ? (
        <section className="panel">
          <Loading />
        </section>
      ) : (
        keys.map((key) => (
          <KeyChart
            key={key}
            name={key}
            lines={result.data.lines.filter((line) => line.key === key)}
            past={result.data.past.filter((line) => line.key === key)}
            range={result.data.range}
            onZoom={zoom}
          />
        ))
      )}
    </Page>
  );
}

function formatInterval(ms: number): string {
  if (ms < 60_000) return `${formatNumber(ms / 1000)} s`;
  if (ms < hourMs) return `${formatNumber(ms / 60_000)} min`;
  return ms < dayMs ? `${formatNumber(ms / hourMs)} h` : `${formatNumber(ms / dayMs)} d`;
}

function KeyChart({
  name,
  lines,
  past,
  range,
  onZoom,
}: {
  name: string;
  lines: Line[];
  past: Line[];
  range: [number, number];
  onZoom: (fromMs: number, toMs: number) => void;
}) {
  const { t } = useLingui();
  const shown = lines.slice(0, maxLines);
  const earlier = past.filter(({ device }) => shown.some((line) => line.device === device));
  const { times, values } = useMemo(() => aligned([...shown, ...earlier]), [shown, earlier]);
  const colourOf = (device: string | null) => (shown.findIndex((line) => line.device === device) % 6) + 1;
  const left = lines.length - shown.length;
  return (
    <Panel title={name}>
      {shown.length === 0 ? (
        <EmptyState title={<Trans>No values in this time</Trans>}>
          <Trans>Choose another time range, or check whether the devices report this key.</Trans>
        </EmptyState>
      ) : (
        <>
          {left > 0 && (
            <Alert color="gray" variant="light" mb="sm">
              <Plural
                value={left}
                one="# more device has values. Show all devices as one, or choose fewer."
                other="# more devices have values. Show all devices as one, or choose fewer."
              />
            </Alert>
          )}
          <Chart
            label={t`${name} over time`}
            height={220}
            times={times}
            range={range}
            isAutoScaled
            onZoom={onZoom}
            syncKey="telemetry"
            format={(value) => formatNumber(value, 3)}
            tick={formatTick}
            series={[...shown, ...earlier].map(({ device }, index) => ({
              label: index < shown.length ? (device ?? t`all devices`) : t`${device ?? t`all devices`} before`,
              values: values[index] ?? [],
              colour: colourOf(device),
              isDashed: index >= shown.length,
            }))}
          />
          <Summary name={name} lines={shown} />
        </>
      )}
    </Panel>
  );
}

function Summary({ name, lines }: { name: string; lines: Line[] }) {
  const { t } = useLingui();
  const number = (value: number) => formatNumber(value, 3);
  return (
    <div className="table-scroller" tabIndex={0} role="region" aria-label={t`Summary of ${name}`}>
      <table className="data-table">
        <thead>
          <tr>
            <th scope="col">
              <Trans>Device</Trans>
            </th>
            <th scope="col" className="right">
              <Trans>Smallest</Trans>
            </th>
            <th scope="col" className="right">
              <Trans>Mean</Trans>
            </th>
            <th scope="col" className="right">
              <Trans>Largest</Trans>
            </th>
            <th scope="col" className="right">
              <Trans>Last</Trans>
            </th>
          </tr>
        </thead>
        <tbody>
          {lines.map(({ device, points: shown }) => {
            const values = [...shown.values()];
            const last = [...shown.entries()].reduce((a, b) => (b[0] > a[0] ? b : a))[1];
            return (
              <tr key={device ?? ''}>
                <td>
                  {device === null ? (
                    <Trans>all devices</Trans>
                  ) : (
                    <Link href={`/devices/${encodeURIComponent(device)}`} className="link">
                      {device}
                    </Link>
                  )}
                </td>
                <td className="right">{number(Math.min(...values))}</td>
                <td className="right">{number(values.reduce((a, b) => a + b, 0) / values.length)}</td>
                <td className="right">{number(Math.max(...values))}</td>
                <td className="right">{number(last)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

/** Keys with numbers that the first devices of the choice have. */
function useKeys(devices: string[], group: string) {
  const sampled = 5;
  return useRead(
    ['telemetry-keys', devices.slice(0, sampled).join(), group],
    async (signal) => {
      let ids = devices.slice(0, sampled);
      if (group) {
        const page = await unwrap(
          api.GET('/api/v1/device-groups/{id}/devices', {
            params: { path: { id: group }, query: { limit: sampled } },
            signal,
          }),
        );
        ids = page.data.map(({ id }) => id);
      }
      const found = new Set<string>();
      const latest = await Promise.all(
        ids.map((id) =>
          unwrap(api.GET('/api/v1/devices/{id}/telemetry/latest', { params: { path: { id } }, signal })).catch(
            () => null,
          ),
        ),
      );
      for (const each of latest) {
        for (const [key, entry] of Object.entries(each?.values ?? {})) {
          if (['number', 'boolean'].includes(typeof (entry as { value: unknown }).value)) found.add(key);
        }
      }
      return [...found].sort();
    },
    { enabled: devices.length > 0 || group !== '' },
  );
}

function DeviceSelect({
  value,
  onChange,
  isDisabled,
}: {
  value: string[];
  onChange: (value: string[]) => void;
  isDisabled: boolean;
}) {
  const { t } = useLingui();
  const [typed, setTyped] = useState('');
  const [text] = useDebouncedValue(typed.trim(), 200);
  const found = useRead(
    ['devices', 'found', text],
    (signal) =>
      unwrap(api.GET('/api/v1/devices', { params: { query: { limit: maxFound, ...(text ? { text } : {}) } }, signal })),
    { keep: true },
  );
  const options = (found.data?.data ?? []).map(({ id, name }) => ({
    value: id,
    label: name && name !== id ? `${name} (${id})` : id,
  }));
  const missing = value.filter((id) => options.every((option) => option.value !== id));
  return (
    <MultiSelect
      label={t`Devices`}
      placeholder={value.length === 0 ? t`Part of an id or name` : undefined}
      searchable
      clearable
      disabled={isDisabled}
      maxValues={maxDevices}
      searchValue={typed}
      onSearchChange={setTyped}
      data={[...missing.map((id) => ({ value: id, label: id })), ...options]}
      // The node searches; until it has answered, what was found before is narrowed down.
      filter={({ options: all, search }) =>
        search.trim() === text && !found.isPlaceholderData
          ? all
          : all.filter(
              (option) => 'label' in option && option.label.toLowerCase().includes(search.trim().toLowerCase()),
            )
      }
      hidePickedOptions
      value={value}
      onChange={onChange}
      nothingFoundMessage={found.data ? t`No device matches` : t`Searching`}
    />
  );
}

function GroupSelect({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  const { t } = useLingui();
  const groups = useRead(['device-groups', 'names'], (signal) =>
    unwrap(api.GET('/api/v1/device-groups', { params: { query: { limit: 1000 } }, signal })),
  );
  return (
    <Select
      label={t`or a group`}
      placeholder={t`no group`}
      clearable
      searchable
      value={value || null}
      onChange={(next) => onChange(next ?? '')}
      data={(groups.data?.data ?? []).map(({ id, name }) => ({ value: id, label: name || id }))}
      nothingFoundMessage={t`There is no group`}
    />
  );
}

function ExportMenu({
  devices,
  group,
  keys,
  range,
  lines,
}: {
  devices: string[];
  group: string;
  keys: string[];
  range: [number, number] | undefined;
  lines: Line[];
}) {
  const { t } = useLingui();
  const [isPending, setPending] = useState(false);
  const save = async (collection: 'devices' | 'device-groups', id: string, format: 'csv' | 'parquet') => {
    setPending(true);
    try {
      const path = withQuery(`/api/v1/${collection}/${encodeURIComponent(id)}/telemetry/export`, {
        format,
        keys: keys.join(','),
        from_ms: range?.[0],
        to_ms: range?.[1],
      });
      await downloadFrom(path, `${id}.${format}`);
    } catch (error) {
      notifications.show({ color: 'red', message: t`The export failed: ${(error as Error).message}` });
    } finally {
      setPending(false);
    }
  };
  return (
    <Menu>
      <Menu.Target>
        <Button variant="default" leftSection={<IconDownload size={14} />} loading={isPending}>
          <Trans>Export</Trans>
        </Button>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Label>
          <Trans>What the charts show</Trans>
        </Menu.Label>
        <Menu.Item disabled={lines.length === 0} onClick={() => download('telemetry.csv', asCsv(lines), 'text/csv')}>
          CSV
        </Menu.Item>
        {group !== '' && (
          <>
            <Menu.Label>
              <Trans>All values of the group in this time</Trans>
            </Menu.Label>
            <Menu.Item onClick={() => void save('device-groups', group, 'csv')}>{group}, CSV</Menu.Item>
            <Menu.Item onClick={() => void save('device-groups', group, 'parquet')}>{group}, Parquet</Menu.Item>
          </>
        )}
        {devices.length > 0 && (
          <Menu.Label>
            <Trans>All values of a device in this time</Trans>
          </Menu.Label>
        )}
        {devices.map((device) => (
          <div key={device}>
            <Menu.Item onClick={() => void save('devices', device, 'csv')}>{device}, CSV</Menu.Item>
            <Menu.Item onClick={() => void save('devices', device, 'parquet')}>{device}, Parquet</Menu.Item>
          </div>
        ))}
      </Menu.Dropdown>
    </Menu>
  );
}
