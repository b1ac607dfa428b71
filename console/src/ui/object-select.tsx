import { Select } from '@mantine/core';
import type { ReactNode } from 'react';
import { api, unwrap, useRead } from '../api/client';

type Kind = 'sinks' | 'connectors' | 'products' | 'device-groups';

const maxNames = 1_000;

/** The name of another object, chosen from those that exist. */
export function ObjectSelect({
  kind,
  label,
  description,
  value,
  onChange,
  error,
  required,
  filter,
}: {
  kind: Kind;
  label: string;
  description?: ReactNode;
  value: unknown;
  onChange: (value: unknown) => void;
  error?: string;
  required: boolean;
  /** Which objects can be chosen; default: all. */
  filter?: (object: Record<string, unknown>) => boolean;
}) {
  const objects = useRead([kind, 'names'], async (signal) => {
    const page = await unwrap(
      api.GET(`/api/v1/${kind}` as '/api/v1/sinks', { params: { query: { limit: maxNames } }, signal }),
    );
    return page.data as unknown as Record<string, unknown>[];
  });
  const names = (objects.data ?? [])
    .filter((object) => filter?.(object) ?? true)
    .map((object) => String(object.name ?? object.id));
  const current = typeof value === 'string' && value !== '' ? value : null;
  return (
    <Select
      label={label}
      description={description}
      error={error}
      required={required}
      searchable
      clearable={!required}
      // A name whose object does not exist any more stays visible.
      data={current !== null && !names.includes(current) ? [current, ...names] : names}
      value={current}
      onChange={(next) => onChange(next ?? undefined)}
    />
  );
}
