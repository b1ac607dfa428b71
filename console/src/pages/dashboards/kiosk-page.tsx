import { Text, Title } from '@mantine/core';
import { useDocumentTitle } from '@mantine/hooks';
import { Trans } from '@lingui/react/macro';
import { useMemo, useState } from 'react';
import { ApiError, useRead } from '../../api/client';
import { spanMsOf, SpanSelect } from '../../ui/span-select';
import { EmptyState, ErrorState, Loading } from '../../ui/states';
import { DashboardContext, sharedSource } from './card-data';
import type { Card } from './dashboard';
import './dashboards.css';
import { Grid } from './grid';

interface SharedDashboard {
  name: string;
  description: string;
  cards: Card[];
}

/** A dashboard behind a share link. The token is in the fragment, which browsers do not send. */
export default function KioskPage() {
  const [token] = useState(() => location.hash.slice(1));
  const [span, setSpan] = useState('1h');
  const source = useMemo(() => sharedSource(token), [token]);
  const dashboard = useRead<SharedDashboard>(
    ['kiosk', token],
    (signal) => source.read('/api/v1/kiosk/dashboard', signal),
    { every: 30_000 },
  );
  useDocumentTitle(dashboard.data?.name ?? 'Tidegate');
  const context = useMemo(() => ({ source, spanMs: spanMsOf(span), mayControl: false }), [source, span]);
  if (dashboard.error instanceof ApiError && dashboard.error.status === 401) {
    return (
      <main className="kiosk">
        <EmptyState title={<Trans>This link does not work any more</Trans>}>
          <Trans>It has ended or was revoked. Ask whoever gave it to you for another one.</Trans>
        </EmptyState>
      </main>
    );
  }
  if (!dashboard.data) {
    return (
      <main className="kiosk">
        {dashboard.error ? <ErrorState error={dashboard.error} retry={() => void dashboard.refetch()} /> : <Loading />}
      </main>
    );
  }
  return (
    <main className="kiosk page">
      <header className="page-header">
        <div>
          <Title order={1}>{dashboard.data.name}</Title>
          <Text size="sm" c="dimmed">
            {dashboard.data.description}
          </Text>
        </div>
        <SpanSelect value={span} onChange={setSpan} />
      </header>
      <DashboardContext value={context}>
        <Grid cards={dashboard.data.cards} />
      </DashboardContext>
    </main>
  );
}
