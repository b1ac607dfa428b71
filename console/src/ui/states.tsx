/** What a page shows instead of its content: nothing there, an error, no permission, still loading. */

import { Button, Skeleton, Stack, Text, Title } from '@mantine/core';
import { Trans } from '@lingui/react/macro';
import { IconLock, IconPlugConnectedX, IconRefresh } from '@tabler/icons-react';
import type { ReactNode } from 'react';
import { ApiError } from '../api/client';

export function EmptyState({
  title,
  children,
  actions,
}: {
  title: ReactNode;
  children?: ReactNode;
  actions?: ReactNode;
}) {
  return (
    <Stack className="empty-state" align="center" gap="xs">
      <Title order={2}>{title}</Title>
      {children && (
        <Text c="dimmed" maw={520} ta="center">
          {children}
        </Text>
      )}
      {actions && <div className="row wrap centered">{actions}</div>}
    </Stack>
  );
}

/** Instead of what the caller's role does not permit. */
export function Forbidden({ children }: { children: ReactNode }) {
  return (
    <Stack className="empty-state" align="center" gap="xs">
      <IconLock size={28} aria-hidden className="dimmed" />
      <Title order={2}>
        <Trans>You may not see this</Trans>
      </Title>
      <Text c="dimmed" maw={520} ta="center">
        {children}
      </Text>
    </Stack>
  );
}

export function ErrorState({ error, retry }: { error: Error; retry?: () => void }) {
  const status = error instanceof ApiError ? error.status : undefined;
  if (status === 403) return <Forbidden>{error.message}</Forbidden>;
  return (
    <Stack className="empty-state" align="center" gap="xs" role="alert">
      <IconPlugConnectedX size={28} aria-hidden className="dimmed" />
      <Title order={2}>
        {status === 0 ? <Trans>The node does not answer</Trans> : <Trans>This could not be read</Trans>}
      </Title>
      <Text c="dimmed" maw={520} ta="center">
        {status === 0 ? <Trans>It may be restarting. This page tries again by itself.</Trans> : error.message}
      </Text>
      {retry && (
        <Button variant="default" leftSection={<IconRefresh size={14} />} onClick={retry}>
          <Trans>Try again</Trans>
        </Button>
      )}
    </Stack>
  );
}

/** Lines that hold the space of what is being loaded. */
export function Loading({ lines = 6 }: { lines?: number }) {
  return (
    <Stack gap={10} p="md" aria-busy>
      {Array.from({ length: lines }, (_, line) => (
        <Skeleton key={line} height={14} width={`${90 - ((line * 17) % 45)}%`} />
      ))}
    </Stack>
  );
}
