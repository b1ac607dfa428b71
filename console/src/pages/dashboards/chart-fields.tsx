/** How a chart draws its lines, and over which time. */

import { Fieldset, Group, SegmentedControl, Select, Stack, TextInput } from '@mantine/core';
import { useLingui } from '@lingui/react/macro';
import { TimeField } from '../../ui/field-inputs';
import type { CardConfig, LineStyle } from './dashboard';
import type { SourceDraft } from './source-draft';

interface ChartFieldsProps {
  config: CardConfig;
  set: (change: Partial<CardConfig>) => void;
  sources: SourceDraft[];
}

export function ChartFields({ config, set, sources }: ChartFieldsProps) {
  const { t } = useLingui();
  const lines = sources.flatMap(({ type, device, group, keys }) =>
    type === 'telemetry' && device && !group ? keys.map((key) => ({ device, key })) : [],
  );
  return (
    <>
      <SegmentedControl
        aria-label={t`Drawn as`}
        value={config.chart ?? 'line'}
        onChange={(chart) => set({ chart: chart === 'bar' ? 'bar' : undefined })}
        data={[
          { value: 'line', label: t`Lines` },
          { value: 'bar', label: t`Bars` },
        ]}
      />
      <TimeRangeField config={config} set={set} />
      {lines.length > 0 && (
        <LineStyles lines={lines} value={config.lines ?? []} onChange={(next) => set({ lines: next })} />
      )}
    </>
  );
}

const spansS = [900, 3_600, 21_600, 86_400, 604_800, 2_592_000];

function TimeRangeField({ config, set }: Omit<ChartFieldsProps, 'sources'>) {
  const { t } = useLingui();
  const { span_s, from_ms, to_ms } = config;
  const isFixed = from_ms !== undefined || to_ms !== undefined;
  const names: Record<number, string> = {
    900: t`15 minutes`,
    3_600: t`1 hour`,
    21_600: t`6 hours`,
    86_400: t`24 hours`,
    604_800: t`7 days`,
    2_592_000: t`30 days`,
  };
  const offered = span_s === undefined || spansS.includes(span_s) ? spansS : [...spansS, span_s];
  const choose = (next: string | null) => {
    const none = { span_s: undefined, from_ms: undefined, to_ms: undefined };
    const now = Date.now();
    if (next === 'fixed') set({ ...none, from_ms: now - 86_400_000, to_ms: now });
    else set(next === 'page' || next === null ? none : { ...none, span_s: Number(next) });
  };
  return (
    <>
      <Select
        label={t`Time range`}
        allowDeselect={false}
        value={isFixed ? 'fixed' : span_s === undefined ? 'page' : String(span_s)}
        onChange={choose}
        data={[
          { value: 'page', label: t`As chosen above the cards` },
          ...offered.map((seconds) => ({ value: String(seconds), label: names[seconds] ?? `${seconds} s` })),
          { value: 'fixed', label: t`From one time to another` },
        ]}
      />
      {isFixed && (
        <Group grow align="start">
          <TimeField
            label={t`From`}
            required
            disabled={false}
            value={from_ms}
            empty={undefined}
            onChange={(value) => set({ from_ms: value as number | undefined })}
          />
          <TimeField
            label={t`To`}
            required
            disabled={false}
            value={to_ms}
            empty={undefined}
            error={from_ms !== undefined && to_ms !== undefined && from_ms >= to_ms ? t`Before the start` : undefined}
            onChange={(value) => set({ to_ms: value as number | undefined })}
          />
        </Group>
      )}
    </>
  );
}

function LineStyles({
  lines,
  value,
  onChange,
}: {
  lines: { device: string; key: string }[];
  value: LineStyle[];
  onChange: (value: LineStyle[] | undefined) => void;
}) {
  const { t } = useLingui();
  const colours = [t`teal`, t`violet`, t`orange`, t`blue`, t`pink`, t`green`];
  const styleOf = (device: string, key: string): LineStyle =>
    value.find((each) => each.device === device && each.key === key) ?? { device, key };
  const set = (next: LineStyle) => {
    // Only of lines that the chart has, and that look other than usual.
    const styles = lines
      .map(({ device, key }) => (device === next.device && key === next.key ? next : styleOf(device, key)))
      .filter(({ label, colour }) => label !== undefined || colour !== undefined);
    onChange(styles.length > 0 ? styles : undefined);
  };
  return (
    <Fieldset legend={t`Labels and colours`}>
      <Stack gap="xs">
        {lines.map(({ device, key }) => {
          const style = styleOf(device, key);
          const name = `${device} ${key}`;
          return (
            <Group key={name} gap="xs" grow>
              <TextInput
                aria-label={t`Label of ${name}`}
                placeholder={name}
                maxLength={100}
                value={style.label ?? ''}
                onChange={(event) => set({ ...style, label: event.currentTarget.value || undefined })}
              />
              <Select
                aria-label={t`Colour of ${name}`}
                placeholder={t`automatic`}
                clearable
                leftSection={style.colour && <span className="colour-sample" data-colour={style.colour} aria-hidden />}
                data={colours.map((label, index) => ({ value: String(index + 1), label }))}
                renderOption={({ option }) => (
                  <span className="row">
                    <span className="colour-sample" data-colour={option.value} aria-hidden />
                    {option.label}
                  </span>
                )}
                value={style.colour === undefined ? null : String(style.colour)}
                onChange={(next) => set({ ...style, colour: next === null ? undefined : Number(next) })}
              />
            </Group>
          );
        })}
      </Stack>
    </Fieldset>
  );
}
